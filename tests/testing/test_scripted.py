from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from nsqkit.consumer import Consumer
from nsqkit.errors import BrokerError, OptionError
from nsqkit.producer import Producer
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.script import close, expect, heartbeat, message, reply, reset, wait
from nsqkit.testing.script_replay import replay
from nsqkit.testing.scripted import ScriptedNsqd
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME

SUBSCRIBED = (expect("IDENTIFY"), reply(), expect("SUB", topic="t", channel="c"), reply())


def dial(server: ScriptedNsqd) -> socket.socket:
    return socket.create_connection(split_address(server.tcp_address), timeout=60)


@pytest.mark.anyio
async def test_a_consumer_follows_the_script() -> None:
    steps = (*SUBSCRIBED, expect("RDY"), heartbeat(), message("one", attempts=3), expect("FIN", body="one"))
    with ScriptedNsqd(*steps, close()) as nsqd:
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            received = await anext(aiter(consumer))
            assert (received.body, received.attempts) == (b"one", 3)
            received.finish()
            await nsqd.assert_complete()
    nsqd.assert_finished("one", topic="t", channel="c")
    nsqd.assert_ready_at_most(2500)


@pytest.mark.anyio
async def test_a_producer_gets_the_error_of_the_script() -> None:
    steps = (expect("IDENTIFY"), reply(), expect("PUB", body="one"), reply("E_PUB_FAILED disk"), close())
    with ScriptedNsqd(*steps) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            with pytest.raises(BrokerError, match="disk"):
                await producer.publish("t", b"one")


def test_a_plain_client_and_a_wait_by_the_clock() -> None:
    clock = ControlledClock("manual")
    with ScriptedNsqd(expect("PUB"), wait(3600), reply(), clock=clock) as nsqd, dial(nsqd) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        nsqd_thread_waits(nsqd)
        clock.advance(3600)
        assert client.recv(len(OK_FRAME)) == OK_FRAME
        nsqd.assert_complete()


def nsqd_thread_waits(nsqd: ScriptedNsqd) -> None:
    done = threading.Event()
    while not nsqd.journal.commands("PUB"):
        done.wait(0.001)


def test_a_reset_connection() -> None:
    with ScriptedNsqd(expect("PUB"), reset()) as nsqd, dial(nsqd) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_another_command_fails_at_the_end_with_the_journal() -> None:
    def run() -> None:
        with ScriptedNsqd(expect("SUB"), reply()) as nsqd, dial(nsqd) as client:
            client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
            assert client.recv(1) == b""

    with pytest.raises(AssertionError) as info:
        run()
    first, second, *lines = str(info.value).splitlines()
    assert first.startswith("expected step 1 of 2, expect('SUB'), got PUB t b'x' from 127.0.0.1:")
    assert second == "The journal has:"
    assert [line.split()[3] for line in lines] == ["MAGIC", "PUB"]


def test_a_step_that_is_not_reached_fails_at_the_end() -> None:
    def run() -> None:
        with ScriptedNsqd(expect("PUB"), reply(), expect("PUB"), timeout=0) as nsqd, dial(nsqd) as client:
            client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
            assert client.recv(len(OK_FRAME)) == OK_FRAME

    with pytest.raises(AssertionError, match=r"expected step 3 of 3, expect\('PUB'\), but nothing more came"):
        run()
    with pytest.raises(AssertionError, match="expected 1 connections, but 0 came"), ScriptedNsqd(reply(), timeout=0):
        pass


def test_an_error_of_the_test_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedNsqd(expect("PUB")):
        raise ZeroDivisionError


def test_every_connection_plays_the_script_and_one_must_come_to_its_end() -> None:
    with ScriptedNsqd(reply(), expect("PUB")) as nsqd, dial(nsqd) as first, dial(nsqd) as second:
        for client in (first, second):
            assert client.recv(len(OK_FRAME)) == OK_FRAME
        second.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))


def test_each_connection_has_its_list_and_others_are_closed() -> None:
    with ScriptedNsqd([reply(), expect("PUB")], [reply(b"x")]) as nsqd, dial(nsqd) as first:
        assert first.recv(len(OK_FRAME)) == OK_FRAME
        with dial(nsqd) as second, dial(nsqd) as third:
            assert second.recv(1) == b"x"
            assert third.recv(1) == b""
        first.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        nsqd.assert_complete()


def test_wrong_steps_are_refused_at_construction() -> None:
    with pytest.raises(OptionError, match="a script must have at least one step"):
        ScriptedNsqd()
    with pytest.raises(OptionError, match="allowed are only steps, or only lists of steps"):
        ScriptedNsqd(reply(), [reply()])
    with pytest.raises(OptionError, match="timeout"):
        ScriptedNsqd(reply(), timeout=-1)


@pytest.mark.anyio
async def test_a_recording_of_a_broker_is_replayed(tmp_path: Path) -> None:
    async def use(address: str) -> list[bytes]:
        async with Producer(address) as producer:
            await producer.publish("t", b"one")
            await producer.multi_publish("t", [b"two", b"three"])
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], max_in_flight=1) as consumer:
            bodies = []
            async for received in consumer:
                bodies.append(received.body)
                received.finish()
                if len(bodies) == 3:
                    return bodies
        raise AssertionError

    path = tmp_path / "journal.jsonl"
    with NsqdServer() as server:
        bodies = await use(server.tcp_address)
        server.journal.save(path)
    with ScriptedNsqd(*replay(path)) as nsqd:
        assert await use(nsqd.tcp_address) == bodies
        await nsqd.assert_complete()
