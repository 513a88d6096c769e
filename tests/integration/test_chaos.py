"""Three brokers and four consumers, while brokers are killed, stalled and cut off: nothing acknowledged is lost.

A few seconds here; ``NSQKIT_CHAOS_SECONDS=60`` makes it a minute, ``NSQKIT_CHAOS_SEED`` another one.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, Final

import anyio
import pytest

from nsqkit import Consumer, Message, Producer
from nsqkit.errors import NSQError
from tests.integration.chaos import BrokerProcess, Wire

SECONDS = float(os.environ.get("NSQKIT_CHAOS_SECONDS", "5"))
SEED = int(os.environ.get("NSQKIT_CHAOS_SEED", "1"))
PATIENCE = 120.0
"""Seconds that the rest may take when all is quiet again."""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(SECONDS + 2 * PATIENCE),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


class Run:
    """One run: what was acknowledged, what was finished."""

    def __init__(self) -> None:
        self.random = Random(SEED)
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.is_over = False
        self.all_finished = anyio.Event()

    async def publish(self, producer: Producer, name: str) -> None:
        """Publish until it is over; what was not acknowledged may be there or not."""
        number = 0
        while not self.is_over:
            number += 1
            bodies = [b"%s %d %d" % (name.encode(), number, part) for part in range(1 + number % 3)]
            try:
                if len(bodies) == 1:
                    await producer.publish("t", bodies[0])
                else:
                    await producer.multi_publish("t", bodies)
            except NSQError:
                await anyio.sleep(0.01)
            else:
                self.acknowledged.update(bodies)
            await anyio.sleep(0.001)

    async def handle(self, message: Message) -> None:
        """Do what handlers do."""
        match 0 if self.is_over else self.random.randrange(30):
            case 1:
                raise ValueError("a handler fails")
            case 2:
                message.requeue(0.1, backoff=False)
                return
            case 3:
                await anyio.sleep(4)  # longer than nsqd waits
            case 4:
                message.touch()
        self.finished.add(message.body)
        self.look()

    def look(self) -> None:
        """See whether all is done."""
        if self.is_over and self.acknowledged <= self.finished:
            self.all_finished.set()

    async def disturb(self, brokers: list[BrokerProcess], wires: list[Wire]) -> None:
        """Kill, stall and cut."""
        while not self.is_over:
            await anyio.sleep(self.random.uniform(0.05, 0.5))
            number = self.random.randrange(len(brokers))
            match self.random.randrange(4):
                case 0:
                    await brokers[number].kill()
                    await anyio.sleep(self.random.uniform(0, 0.5))
                    await brokers[number].start()
                case 1:
                    await brokers[number].stall(self.random.uniform(0, 1))
                case _:
                    wires[number].cut()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_what_was_acknowledged_is_finished_whatever_happens(tmp_path, monkeypatch):
    # A handler's failure is wanted here; its traceback is not.
    monkeypatch.setattr("nsqkit.consumer.handling.logger.error", lambda *args, **kwargs: None)
    tasks_before, threads_before, files_before = running_tasks(), set(threading.enumerate()), open_files()
    run = Run()
    brokers = [BrokerProcess(tmp_path / str(number), run.random) for number in range(3)]
    try:
        async with AsyncExitStack() as stack:
            for broker in brokers:
                await broker.start()
            wires = [
                await stack.enter_async_context(Wire(broker.port, run.random).running()) for broker in brokers
            ]
            addresses = [wire.address for wire in wires]
            await live(run, brokers, wires, addresses)
    finally:
        for broker in brokers:
            broker.end()
    assert run.acknowledged, "nothing could be published"
    assert running_tasks() == tasks_before
    assert [thread for thread in set(threading.enumerate()) - threads_before if not is_anyios(thread)] == []
    assert open_files() <= files_before


KEYWORDS: Final[dict[str, Any]] = {
    "reconnect_delay_min": 0.01,
    "reconnect_delay_max": 0.2,
    "read_timeout": 3,
    "heartbeat_interval": 1,
}
"""Of all clients: a broker that is gone is missed soon, and found again soon."""


async def live(run: Run, brokers: list[BrokerProcess], wires: list[Wire], addresses: list[str]) -> None:
    """Let producers and consumers do their work while they are disturbed, and then until all is finished."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(make_consumer(addresses, max_in_flight=20 + number))
            for number in range(4)
        ]
        producers = [
            await stack.enter_async_context(
                Producer(*addresses, policy="random", publish_attempts=1 + number, **KEYWORDS)
            )
            for number in range(3)
        ]
        async with anyio.create_task_group() as handling:
            for number, consumer in enumerate(consumers):
                watched = number % 2 == 0
                handling.start_soon(
                    partial(
                        consumer.run,
                        run.handle,
                        concurrency=5,
                        cancel_at_timeout=watched,
                        auto_touch=not watched,
                    )
                )
            async with anyio.create_task_group() as work:
                for number, producer in enumerate(producers):
                    work.start_soon(run.publish, producer, f"p{number}")
                work.start_soon(run.disturb, brokers, wires)
                await anyio.sleep(SECONDS)
                run.is_over = True
            run.look()
            with anyio.move_on_after(PATIENCE):
                await run.all_finished.wait()
            assert run.acknowledged - run.finished == set()
            handling.cancel_scope.cancel()


def make_consumer(addresses: list[str], *, max_in_flight: int) -> Consumer:
    return Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=addresses,
        max_in_flight=max_in_flight,
        max_attempts=0,
        default_requeue_delay=0.1,
        max_backoff_duration=0.2,
        backoff_multiplier=0.05,
        **KEYWORDS,
    )


def running_tasks() -> set[int]:
    """Return the ids of all tasks of this event loop."""
    return {task.id for task in anyio.get_running_tasks()}


def open_files() -> int:
    """Return how many files and sockets this process has open; 0 where nobody tells."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def is_anyios(thread: threading.Thread) -> bool:
    """Tell whether a thread is one of a pool that waits for more work, which the event loop keeps."""
    return "worker" in thread.name.lower() or thread.name.startswith(("asyncio_", "Trio"))
