from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from nsqkit import BlockingProducer, Consumer, Producer
from nsqkit.errors import OptionError
from nsqkit.testing.errors import ServerState
from nsqkit.testing.servers import NsqdServer
from nsqkit.testing.waiting import Traffic

SOON = 0.02


def test_wait_ends_at_once_if_the_state_is_there(nsqd: NsqdServer) -> None:
    nsqd.wait_for(lambda: True, timeout=0)
    nsqd.wait_idle(timeout=0)
    nsqd.publish("t", b"x", b"y")
    nsqd.wait_depth("t", None, 2, timeout=0)


def test_wait_ends_when_another_thread_has_changed_the_state(nsqd: NsqdServer) -> None:
    with BlockingProducer(nsqd.tcp_address) as producer:

        def publish() -> None:
            for _ in range(3):
                producer.publish("t", b"x")

        thread = threading.Thread(target=publish)
        thread.start()
        nsqd.wait_depth("t", None, 3)
        nsqd.wait_for(lambda: nsqd.topic("t").message_count == 3)
        nsqd.wait_connected()
        thread.join()


@pytest.mark.anyio
async def test_waits_are_awaited_in_an_event_loop(nsqd: NsqdServer) -> None:
    async with Producer(nsqd.tcp_address) as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(producer.publish, "t", b"x")
        await nsqd.wait_depth("t", None, 1)
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            await nsqd.wait_connected(2)
            message = await anext(consumer)
            with pytest.raises(AssertionError, match="channel 't/c' was not idle for 0 s"):
                await nsqd.wait_idle("t", "c", timeout=0)
            message.finish()
            for names in ((), ("t",), ("t", "c")):
                await nsqd.wait_idle(*names)


def test_deferred_messages_are_not_idle() -> None:
    with NsqdServer(clock="manual") as nsqd:
        nsqd.inspect(lambda broker: broker.topics.get_or_create(b"t").channel(b"c", 0))
        nsqd.publish("t", b"x", defer=timedelta(hours=1))
        with pytest.raises(AssertionError, match="the broker was not idle"):
            nsqd.wait_idle(timeout=0)
        nsqd.clock.advance(3600)
        nsqd.wait_depth("t", "c", 1)


def test_failure_shows_the_state_and_the_journal(nsqd: NsqdServer) -> None:
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"first")
        with pytest.raises(AssertionError) as caught:
            nsqd.wait_depth("orders", None, 2, timeout=SOON)
    text = str(caught.value)
    assert text.startswith(f"the depth of topic 'orders' was not 2 for {SOON:g} s\n\nstate:\n")
    assert str(nsqd.topic("orders")).splitlines()[-1] in text
    assert "the last 20 lines of the journal:" in text
    assert "PUB" in text.partition("journal:")[2]


def test_failure_of_a_predicate_names_it(nsqd: NsqdServer) -> None:
    with pytest.raises(AssertionError, match=rf"<lambda> \({__file__}:\d+\) was false for 0 s\n\nstate:\nno topics"):
        nsqd.wait_for(lambda: False, timeout=0)


def test_failure_of_a_predicate_of_a_stopped_server_names_it(nsqd: NsqdServer) -> None:
    nsqd.stop()
    with pytest.raises(AssertionError, match=r"was false for 0 s\n\nstate:\nstopped\n"):
        nsqd.wait_for(lambda: False, timeout=0)


def test_error_of_a_predicate_is_raised(nsqd: NsqdServer) -> None:
    with pytest.raises(KeyError, match="absent"):
        nsqd.wait_for(lambda: nsqd.topics["absent"])


def test_a_topic_that_does_not_exist_is_neither_idle_nor_empty(nsqd: NsqdServer) -> None:
    with pytest.raises(AssertionError, match="topic 't' was not idle"):
        nsqd.wait_idle("t", timeout=0)
    nsqd.publish("t", b"x")
    for call in (lambda: nsqd.wait_idle("t", "c", timeout=0), lambda: nsqd.wait_depth("t", "c", 0, timeout=0)):
        with pytest.raises(AssertionError, match="'t/c'"):
            call()
    with pytest.raises(AssertionError, match="there were 0 connections, fewer than 2, for 0 s"):
        nsqd.wait_connected(2, timeout=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda nsqd: nsqd.wait_for(lambda: True, timeout=-1),
        lambda nsqd: nsqd.wait_for(lambda: True, timeout="5"),
        lambda nsqd: nsqd.wait_depth("t", None, -1),
        lambda nsqd: nsqd.wait_depth("t", None, True),
        lambda nsqd: nsqd.wait_depth("t t", None, 0),
        lambda nsqd: nsqd.wait_depth("t", "c c", 0),
        lambda nsqd: nsqd.wait_idle("t t"),
        lambda nsqd: nsqd.wait_idle(None, "c"),
        lambda nsqd: nsqd.wait_connected(0),
    ],
    ids=range(9),
)
def test_wrong_argument_is_refused_where_it_is_written(nsqd: NsqdServer, call: Callable[[NsqdServer], Any]) -> None:
    with pytest.raises(OptionError):
        call(nsqd)


def test_stopped_server_is_not_waited_for() -> None:
    with pytest.raises(ServerState):
        NsqdServer().wait_idle()


def test_traffic_wakes_a_wait() -> None:
    traffic = Traffic()
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        traffic.notify()
        return len(looks) == 50

    assert traffic.wait_for(look, timeout=60)
    assert len(looks) == 50
    assert not traffic.wait_for(lambda: False, timeout=0)
    assert not traffic.wait_for(lambda: False, timeout=SOON)
