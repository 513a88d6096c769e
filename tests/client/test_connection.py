from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.client.connection import Connection, dial_tcp
from nsqkit.client.reconnect import Reconnect
from nsqkit.clock import NS_PER_S, ManualClock
from nsqkit.errors import (
    BadTopic,
    Closed,
    ConnectionLost,
    ConnectTimeout,
    HeartbeatTimeout,
    NotConnected,
    ProtocolError,
)
from nsqkit.producer.pipeline import ProducerSession
from nsqkit.transport.address import join_address
from nsqkit.wire.identify import IdentifyRequest
from tests.peers import ADDRESS, BACKENDS, PATIENCE, ScriptedBroker, settle

pytestmark = pytest.mark.anyio
in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)

DIAL_TIMEOUT = 0.05
RETRY = 10.0
"""Seconds of the manual clock that any delay is shorter than."""


class Longest(Random):
    """Makes every delay as long as it may be."""

    def randrange(self, start, stop=None, step=1):
        return start - 1


class Bench:
    """A connection to a scripted broker."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        self.clock = ManualClock()
        self.changes: list[tuple[bool, bool]] = []
        self._changed = anyio.Event()
        self.reconnect = Reconnect(delay_min_ns=NS_PER_S, delay_max_ns=8 * NS_PER_S, random=Longest())
        self.connection: Connection[ProducerSession] = Connection(
            ADDRESS,
            self._make_session,
            clock=self.clock,
            dial=self.broker.dial,
            dial_timeout=DIAL_TIMEOUT,
            reconnect=self.reconnect,
            on_change=self._on_change,
        )

    def _make_session(self, now_ns: int) -> ProducerSession:
        return ProducerSession(
            IdentifyRequest(), read_timeout_ns=60 * NS_PER_S, max_msg_size=1 << 20, now_ns=now_ns
        )

    def _on_change(self, connection: Connection[ProducerSession]) -> None:
        session = connection.session
        self.changes.append((session is not None and session.is_open, connection.is_running))
        self._changed.set()
        self._changed = anyio.Event()

    @property
    def session(self) -> ProducerSession:
        assert self.connection.session is not None
        return self.connection.session

    async def wait_error(self, kind: type[Exception]) -> Exception:
        """Return the error of the connection once it is of this kind."""
        with anyio.fail_after(PATIENCE):
            while not isinstance(self.connection.error, kind):
                await self._changed.wait()
        error = self.connection.error
        assert error is not None
        return error

    async def retry(self) -> None:
        """Let the delay before the next dialling pass."""
        await settle()
        self.clock.advance(RETRY)
        await settle()


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.connection.run)
        yield bench
        tasks.cancel_scope.cancel()
    assert not bench.connection.is_running


class TestDialTcp:
    async def test_it_reaches_a_listener(self):
        async def greet(stream: ByteStream) -> None:
            await stream.send(b"hello")
            await stream.aclose()

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, greet)
            async with await dial_tcp(join_address(*listener.extra(SocketAttribute.local_address))) as stream:
                assert await stream.receive() == b"hello"
            tasks.cancel_scope.cancel()

    async def test_nobody_there_is_an_os_error(self):
        with socket.socket() as taken:  # bound, and not listening
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match=r"."):
                await dial_tcp(join_address(*taken.getsockname()))

    @pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udc80"])
    async def test_what_is_no_name_of_a_host_is_an_os_error_too(self, host):
        with pytest.raises(OSError, match=r"."):
            await dial_tcp(f"{host}:4150")


@in_memory
class TestGreeting:
    async def test_a_greeted_connection_is_open_and_has_no_error(self):
        async with running() as bench, await bench.broker.accept() as peer:
            assert not bench.session.is_open
            await peer.greet()
            await settle()
            assert bench.session.is_open
            assert bench.connection.error is None
            assert bench.changes[-1] == (True, True)

    async def test_an_open_connection_has_all_the_time_there_is(self):
        async with running() as bench, await bench.broker.greet():
            await anyio.sleep(DIAL_TIMEOUT * 1.5)
            assert bench.session.is_open

    async def test_who_cannot_be_reached_is_dialled_again_after_a_growing_delay(self):
        async with running() as bench:
            bench.broker.refusal = ConnectionRefusedError(111, "Connection refused")
            for delay in (1, 2, 4, 8, 8):
                await settle()
                dial_count = bench.broker.dial_count
                error = bench.connection.error
                assert isinstance(error, NotConnected)
                assert str(error) == f"cannot connect to {ADDRESS}: [Errno 111] Connection refused"
                assert error.__cause__ is bench.broker.refusal
                bench.clock.advance(delay - 0.001)
                await settle()
                assert bench.broker.dial_count == dial_count
                bench.clock.advance(0.001)
                await settle()
                assert bench.broker.dial_count == dial_count + 1
            assert bench.connection.session is None
            assert bench.changes[-1] == (False, True)

    async def test_a_dial_that_says_so_in_nsqkits_words_is_tried_again_too(self):
        async with running() as bench:
            bench.broker.refusal = Closed("the broker is not running")
            await bench.wait_error(NotConnected)
            bench.broker.refusal = None
            await bench.retry()
            async with await bench.broker.greet():
                await settle()
                assert bench.session.is_open

    async def test_another_error_of_the_dial_is_not_swallowed(self):
        bench = Bench()
        bench.broker.refusal = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            await bench.connection.run()
        assert not bench.connection.is_running

    async def test_a_dial_that_hangs_is_given_up(self):
        async with running() as bench:
            bench.broker.hanging = True
            error = await bench.wait_error(ConnectTimeout)
            assert str(error) == f"{ADDRESS} did not answer within 0.05 seconds"
            await bench.retry()
            assert bench.broker.dial_count == 2

    async def test_a_broker_that_does_not_greet_is_given_up(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await bench.wait_error(ConnectTimeout)
            assert isinstance(bench.session.error, ConnectTimeout)
            assert await peer.take(4) == b"  V2"
            await bench.retry()
            async with await bench.broker.greet():
                await settle()
                assert bench.connection.error is None

    async def test_why_it_was_refused_is_known_even_if_the_broker_does_not_close(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await peer.send(BadTopic('PUB topic name "!" is not valid'))
            assert str(await bench.wait_error(BadTopic)).startswith("E_BAD_TOPIC PUB")

    async def test_what_is_no_broker_is_known_as_such(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await peer.send(b"220 mail.example.org ESMTP\r\n")
            await bench.wait_error(ProtocolError)


@in_memory
class TestTheEnd:
    async def test_a_lost_connection_is_made_again(self):
        async with running() as bench:
            for _ in range(3):
                peer = await bench.broker.greet()
                await settle()
                assert bench.session.is_open
                await peer.close()
                await bench.wait_error(ConnectionLost)
                assert not bench.session.is_open
                assert bench.reconnect.failure_count == 1  # and not more, for it was greeted in between
                await bench.retry()
            async with await bench.broker.greet():
                await settle()
                assert bench.connection.error is None

    async def test_a_connection_that_ends_within_a_frame_is_a_lost_one(self):
        async with running() as bench:
            peer = await bench.broker.greet()
            await peer.send(b"\0\0\0\x06\0\0")
            await peer.close()
            await bench.wait_error(ConnectionLost)

    async def test_a_silent_broker_is_left(self):
        async with running() as bench:
            peer = await bench.broker.greet()
            await settle()
            bench.clock.advance(59.9)
            await settle()
            assert bench.session.is_open
            bench.clock.advance(0.1)
            await peer.wait_end()
            await peer.close()
            assert str(await bench.wait_error(HeartbeatTimeout)) == "the broker was silent for 60 seconds"
            await bench.retry()
            async with await bench.broker.accept():
                pass

    async def test_who_stops_it_lets_the_present_session_end(self):
        bench = Bench()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.connection.run)
            peer = await bench.broker.greet()
            await settle()
            bench.connection.stop()
            await settle()
            assert bench.session.is_open
            bench.session.send(b"last")
            bench.session.end(None)
            bench.connection.wake()
            assert await peer.take(4) == b"last"
            await peer.wait_end()
            await peer.close()
        assert not bench.connection.is_running
        assert bench.connection.error is None
        assert bench.changes[-1] == (False, False)
        assert bench.broker.dial_count == 1

    async def test_who_stops_it_before_the_start_has_it_dial_nobody(self):
        bench = Bench()
        bench.connection.stop()
        await bench.connection.run()
        assert bench.broker.dial_count == 0

    async def test_who_stops_it_during_a_delay_has_it_dial_no_more(self):
        bench = Bench()
        bench.broker.refusal = ConnectionRefusedError()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.connection.run)
            await settle()
            bench.connection.stop()
            bench.clock.advance(RETRY)
        assert bench.broker.dial_count == 1

    @pytest.mark.parametrize("state", ["dialling", "greeting", "open", "delayed", "lingering"])
    async def test_whenever_it_is_cancelled_nothing_is_left(self, state):
        async with running() as bench:
            bench.broker.hanging = state == "dialling"
            bench.broker.refusal = ConnectionRefusedError() if state == "delayed" else None
            peer = None
            if state in {"greeting", "open", "lingering"}:
                peer = await bench.broker.accept()
            if state in {"open", "lingering"} and peer is not None:
                await peer.greet()
                await settle()
                if state == "lingering":
                    bench.session.end(None)
                    bench.connection.wake()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        if peer is not None:
            assert bench.session.ended
            if state != "lingering":
                assert isinstance(bench.session.error, ConnectionLost)
            if state == "greeting":
                assert await peer.take(4) == b"  V2"
                await peer.command()
            await peer.wait_end()
            await peer.close()

    async def test_it_can_be_woken_when_there_is_nothing(self):
        bench = Bench()
        bench.connection.wake()


@pytest.mark.parametrize("anyio_backend", BACKENDS[1:])  # the clock jumps: a peer may linger for a second
async def test_a_silent_broker_is_left_even_if_it_never_closes():
    async with running() as bench, await bench.broker.greet():
        await settle()
        bench.clock.advance(60)
        await bench.wait_error(HeartbeatTimeout)
