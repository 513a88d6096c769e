"""Three brokers and four consumers: no acknowledged message is lost while brokers are killed, stopped, disconnected.

A run takes a few seconds; ``NSQKIT_CHAOS_SECONDS=60`` makes it a minute, ``NSQKIT_CHAOS_SEED`` selects another one.
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
WAIT_LIMIT = 120.0
"""Seconds that the remaining messages may take after the last fault."""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(SECONDS + 2 * WAIT_LIMIT),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


class Run:
    """One run: acknowledged and finished messages."""

    def __init__(self) -> None:
        self.random = Random(SEED)
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.over = anyio.Event()
        self.all_finished = anyio.Event()

    async def publish(self, producer: Producer, name: str) -> None:
        """Publish until the run is over; an unacknowledged message may or may not be stored."""
        number = 0
        while not self.over.is_set():
            number += 1
            bodies = [b"%s %d %d" % (name.encode(), number, part) for part in range(1 + number % 3)]
            try:
                if len(bodies) == 1:
                    await producer.publish("t", bodies[0])
                else:
                    await producer.multi_publish("t", bodies)
            except NSQError:
                await self.work(0.01)
            else:
                self.acknowledged.update(bodies)
            await self.work(0.001)

    async def work(self, seconds: float) -> None:
        """Return after some time, or when the run is over."""
        with anyio.move_on_after(seconds):
            await self.over.wait()

    async def handle(self, message: Message) -> None:
        """Behave as handlers do."""
        match 0 if self.over.is_set() else self.random.randrange(30):
            case 1:
                raise ValueError("a handler fails")
            case 2:
                message.requeue(0.1, backoff=False)
                return
            case 3:
                await self.work(4)  # longer than the message timeout
            case 4:
                message.touch()
        self.finished.add(message.body)
        self.look()

    def look(self) -> None:
        """Return whether all messages are finished."""
        if self.over.is_set() and self.acknowledged <= self.finished:
            self.all_finished.set()

    async def disturb(self, brokers: list[BrokerProcess], wires: list[Wire]) -> None:
        """Kill, stop and disconnect brokers."""
        while not self.over.is_set():
            await self.work(self.random.uniform(0.05, 0.5))
            number = self.random.randrange(len(brokers))
            match self.random.randrange(4):
                case 0:
                    await brokers[number].kill()
                    await self.work(self.random.uniform(0, 0.5))
                    await brokers[number].start()
                case 1:
                    await brokers[number].stall(self.random.uniform(0, 1))
                case _:
                    wires[number].cut()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_acknowledged_messages_are_finished_in_spite_of_faults(tmp_path, monkeypatch):
    # The handler fails on purpose; its traceback is not logged.
    monkeypatch.setattr("nsqkit.consumer.handling.logger.error", lambda *args, **kwargs: None)
    run = Run()
    brokers = [BrokerProcess(tmp_path / str(number)) for number in range(3)]
    tasks_before, threads_before, files_before = running_tasks(), set(threading.enumerate()), open_files()
    try:
        async with AsyncExitStack() as stack:
            for broker in brokers:
                await broker.start()
            wires = [await stack.enter_async_context(Wire(broker.address, run.random).running()) for broker in brokers]
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
"""Of all clients: the loss of a broker is detected soon, and its return as well."""


async def live(run: Run, brokers: list[BrokerProcess], wires: list[Wire], addresses: list[str]) -> None:
    """Run producers and consumers during the faults, and then until all messages are finished."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(make_consumer(addresses, max_in_flight=20 + number)) for number in range(4)
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
                await run.work(SECONDS)
                run.over.set()
            run.look()
            with anyio.move_on_after(WAIT_LIMIT):
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
    """Return the number of open files and sockets of this process; 0 where the system does not report it."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def is_anyios(thread: threading.Thread) -> bool:
    """Return whether a thread is an idle worker of the event loop's pool."""
    return "worker" in thread.name.lower() or thread.name.startswith(("asyncio_", "Trio"))
