"""More messages in flight than the handlers answer within the message timeout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from nsqkit import BlockingConsumer, BlockingProducer, Consumer
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import NS_PER_S, ManualClock
from nsqkit.testing.servers import NsqdServer
from tests.peers import BACKENDS, dialler
from tests.threads import WAIT_LIMIT

COUNT = 30
MSG_TIMEOUT = 4.0
HANDLER_SECONDS = 0.2
"""So all messages take one and a half times the message timeout; this time passes only in handlers."""
BODIES = [b"%d" % n for n in range(COUNT)]


class Slow:
    """A slow handler, and the messages that it was called with."""

    def __init__(self, clock: Any, stop: Callable[[], None]) -> None:
        self.calls: Counter[bytes] = Counter()
        self.times_left: list[float] = []
        self.given_up: list[bytes] = []
        self._clock = clock
        self._stop = stop

    def begin(self, message: Any) -> None:
        self.calls[message.body] += 1
        self.times_left.append(message.time_left)
        if sum(self.calls.values()) == COUNT:
            self._stop()

    async def wait(self, message: Any) -> None:
        self.begin(message)
        await self._clock.advance(HANDLER_SECONDS)

    def block(self, message: Any) -> None:
        self.begin(message)
        self._clock.advance(HANDLER_SECONDS)

    def give_up(self, message: Any) -> None:
        self.given_up.append(message.body)


def timeouts(broker: Broker) -> int:
    return broker.topics[b"t"].channels[b"c"].timeout_count


def check(slow: Slow, timeout_count: int, caplog: pytest.LogCaptureFixture) -> None:
    assert slow.given_up == []
    assert slow.calls == Counter(dict.fromkeys(BODIES, 1))
    assert min(slow.times_left) >= MSG_TIMEOUT / 4 - 3 * HANDLER_SECONDS
    assert timeout_count == 0
    warnings = [message for message in caplog.messages if "more than the handlers answer" in message]
    assert len(warnings) == 1
    assert f"max_in_flight is {COUNT}" in warnings[0]
    assert f"msg_timeout, {MSG_TIMEOUT:g} s" in warnings[0]


@pytest.fixture
def nsqd():
    with NsqdServer(clock="manual", msg_timeout=MSG_TIMEOUT) as server:
        with BlockingProducer(server.tcp_address) as producer:
            producer.multi_publish("t", BODIES)
        yield server


def options(clock: Any) -> dict[str, Any]:
    return {"max_in_flight": COUNT, "max_attempts": 2, "clock": clock}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["async", "auto_touch", "lanes", "threads"])
def test_each_message_is_handled_once_and_in_time(nsqd, how, backend, caplog):
    async def consume() -> Slow:
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], **options(nsqd.clock)) as consumer:
            slow = Slow(nsqd.clock, consumer.stop)
            with anyio.fail_after(WAIT_LIMIT):
                if how == "threads":
                    await consumer.run(slow.block, giving_up=slow.give_up, in_threads=True)
                elif how == "lanes":
                    await consumer.run(slow.wait, giving_up=slow.give_up, key=lambda message: 0)
                else:
                    await consumer.run(slow.wait, giving_up=slow.give_up, auto_touch=how == "auto_touch")
        assert consumer.stats().finished == COUNT
        return slow

    slow = anyio.run(consume, backend=backend)
    check(slow, nsqd.inspect(timeouts), caplog)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", BACKENDS)
async def test_each_message_is_handled_once_and_in_time_by_a_function_that_blocks_the_event_loop(caplog):
    clock = ManualClock()
    flags = BrokerOptions(tcp_address="127.0.0.1:0", http_address="", msg_timeout_ns=round(MSG_TIMEOUT * NS_PER_S))
    async with Nsqd(flags, clock=clock) as nsqd:
        nsqd.broker.topics.get_or_create(b"t").put(BODIES, clock.now_ns())
        async with Consumer(
            "t", "c", nsqd_tcp_addresses=["nsqd:4150"], dial=dialler(nsqd), **options(clock)
        ) as consumer:
            slow = Slow(clock, consumer.stop)
            with anyio.fail_after(WAIT_LIMIT):
                await consumer.run(slow.block, giving_up=slow.give_up)
        assert consumer.stats().finished == COUNT
        check(slow, timeouts(nsqd.broker), caplog)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_messages_in_threads_are_handled_once_and_in_time(nsqd, concurrency, caplog):
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], **options(nsqd.clock)) as consumer:
        slow = Slow(nsqd.clock, consumer.stop)
        consumer.run(slow.block, giving_up=slow.give_up, concurrency=concurrency)
    check(slow, nsqd.inspect(timeouts), caplog)
