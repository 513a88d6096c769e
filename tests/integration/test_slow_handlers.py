"""More messages in flight than the handlers answer within the message timeout."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from nsqkit import BlockingConsumer, BlockingProducer, Consumer
from nsqkit.testing.servers import NsqdServer
from tests.threads import WAIT_LIMIT

COUNT = 30
MSG_TIMEOUT = 4.0
HANDLER_SECONDS = 0.2
"""So all messages take one and a half times the message timeout."""


class Slow:
    """A slow handler, and the messages that it was called with."""

    def __init__(self) -> None:
        self.calls: Counter[bytes] = Counter()
        self.times_left: list[float] = []
        self.given_up: list[bytes] = []
        self.last_begun = threading.Event()

    def begin(self, message: Any) -> None:
        self.calls[message.body] += 1
        self.times_left.append(message.time_left)
        if sum(self.calls.values()) == COUNT:
            self.last_begun.set()

    async def wait(self, message: Any) -> None:
        self.begin(message)
        with anyio.move_on_after(HANDLER_SECONDS):
            await anyio.sleep_forever()

    def block(self, message: Any) -> None:
        self.begin(message)
        threading.Event().wait(HANDLER_SECONDS)

    def give_up(self, message: Any) -> None:
        self.given_up.append(message.body)


async def consume(slow: Slow, address: str, how: str) -> None:
    async with Consumer("t", "c", nsqd_tcp_addresses=[address], max_in_flight=COUNT, max_attempts=2) as consumer:
        options: dict[str, Any] = {"giving_up": slow.give_up, "auto_touch": how == "auto_touch"}
        if how == "threads":
            run = partial(consumer.run, slow.block, in_threads=True, **options)
        elif how == "lanes":
            run = partial(consumer.run, slow.wait, key=lambda message: 0, **options)
        elif how == "plain":
            run = partial(consumer.run, slow.block, **options)
        else:
            run = partial(consumer.run, slow.wait, **options)
        with anyio.fail_after(WAIT_LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await anyio.to_thread.run_sync(slow.last_begun.wait, WAIT_LIMIT)
                consumer.stop()
    assert consumer.stats().finished == COUNT


def check(slow: Slow, nsqd: NsqdServer, caplog: pytest.LogCaptureFixture) -> None:
    assert slow.given_up == []
    assert slow.calls == Counter({b"%d" % n: 1 for n in range(COUNT)})
    assert min(slow.times_left) >= MSG_TIMEOUT / 4 - 3 * HANDLER_SECONDS
    channel_counts = nsqd.inspect(lambda broker: broker.topics[b"t"].channels[b"c"].timeout_count)
    assert channel_counts == 0
    warnings = [message for message in caplog.messages if "more than the handlers answer" in message]
    assert len(warnings) == 1
    assert f"max_in_flight is {COUNT}" in warnings[0]
    assert f"msg_timeout, {MSG_TIMEOUT:g} s" in warnings[0]


@pytest.fixture
def nsqd():
    with NsqdServer(msg_timeout=MSG_TIMEOUT) as server:
        with BlockingProducer(server.tcp_address) as producer:
            producer.multi_publish("t", [b"%d" % n for n in range(COUNT)])
        yield server


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["async", "auto_touch", "lanes", "threads", "plain"])
def test_each_message_is_handled_once_and_in_time(nsqd, how, backend, caplog):
    slow = Slow()
    if backend == "asyncio":
        asyncio.run(consume(slow, nsqd.tcp_address, how))
    else:
        trio.run(consume, slow, nsqd.tcp_address, how)
    check(slow, nsqd, caplog)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_messages_in_threads_are_handled_once_and_in_time(nsqd, concurrency, caplog):
    slow = Slow()
    began_at = time.monotonic()
    with BlockingConsumer(
        "t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=COUNT, max_attempts=2
    ) as consumer:

        def handle(message: Any) -> None:
            for _ in range(concurrency):
                slow.block(message) if not _ else threading.Event().wait(HANDLER_SECONDS)
            if sum(slow.calls.values()) == COUNT or time.monotonic() - began_at > WAIT_LIMIT:
                consumer.stop()

        consumer.run(handle, giving_up=slow.give_up, concurrency=concurrency)
    check(slow, nsqd, caplog)
