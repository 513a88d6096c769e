"""One run: brokers, the paths to them, publishers, consumers and faults, and the drain at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final, TextIO

import anyio
import attrs

from tests.jepsen.history import Recorder, Setup
from tests.jepsen.nemesis import Nemesis
from tests.jepsen.process import BrokerFailed, BrokerProcess
from tests.jepsen.run import Run
from tests.jepsen.wire import Wire
from tests.jepsen.workers import Consumer, Publisher

CHANNELS: Final = ("a", "b")
PUBLISHERS: Final = 2
CONSUMERS: Final = 2
"""Of each channel of each broker."""

DRAIN_LIMIT_S: Final = 90.0
QUIET_S: Final = 12.0
"""Without a delivery for so long nothing more comes: timeout, delays, and the 5 s by which nsqd may be late."""

MSG_TIMEOUT_S: Final = 3
SYNC_TIMEOUT_S: Final = 0.5

FLAGS: Final = (
    f"--msg-timeout={MSG_TIMEOUT_S}s",
    f"--sync-timeout={round(SYNC_TIMEOUT_S * 1000)}ms",
    "--mem-queue-size=50",
    "--max-bytes-per-file=100000",
    "--log-level=error",
)


@attrs.frozen
class Plan:
    """The parameters of a run that its history does not need.

    Attributes:
        seconds: for which faults are made.
        rate: messages a second, over all brokers.
        pause: the mean number of seconds between two faults of one kind at one broker.
    """

    seconds: float
    rate: float = 300.0
    pause: float = 3.0


async def run(setup: Setup, plan: Plan, directory: Path, file: TextIO) -> None:
    """Run, and write the history to a file.

    Raises:
        BrokerFailed: a broker does not start, or does not stop.
    """
    brokers = [
        BrokerProcess(setup.command, directory / str(number), CHANNELS, FLAGS) for number in range(setup.brokers)
    ]
    state = Run(Recorder(file, setup), setup.channels)
    try:
        async with AsyncExitStack() as stack:
            for broker in brokers:
                broker.prepare()
                await broker.start()
            await brokers[0].check_version()
            wires = [
                await stack.enter_async_context(Wire(broker.port, Random(f"{setup.seed}/wire/{number}")).running())
                for number, broker in enumerate(brokers)
            ]
            await _live(setup, plan, state, brokers, wires)
    finally:
        for broker in brokers:
            broker.end()


async def _live(setup: Setup, plan: Plan, state: Run, brokers: Sequence[BrokerProcess], wires: Sequence[Wire]) -> None:
    async with anyio.create_task_group() as consuming:
        consuming.start_soon(state.watch_time)
        for number, (broker, wire) in enumerate(zip(brokers, wires, strict=True)):
            for channel in setup.channels:
                for consumer in range(CONSUMERS):
                    random = Random(f"{setup.seed}/consumer/{number}/{channel}/{consumer}")
                    consuming.start_soon(Consumer(state, number, broker, wire, channel, random).work)
        async with anyio.create_task_group() as work:
            rate = plan.rate / len(brokers) / PUBLISHERS
            for number, (broker, wire) in enumerate(zip(brokers, wires, strict=True)):
                for publisher in range(PUBLISHERS):
                    random = Random(f"{setup.seed}/publisher/{number}/{publisher}")
                    name = f"p{number}.{publisher}"
                    work.start_soon(Publisher(state, number, wire, name, rate, random).work)
                nemesis = Nemesis(state, number, broker, wire, str(setup.seed), plan.pause)
                work.start_soon(nemesis.disturb_process)
                work.start_soon(nemesis.disturb_links)
            await state.wait(plan.seconds)
            state.calm.set()
        state.record("calm")
        await _drain(state, brokers)
        state.over.set()
        consuming.cancel_scope.cancel()
    state.record("end")


async def _drain(state: Run, brokers: Sequence[BrokerProcess]) -> None:
    """Wait until all messages are finished, or nothing more comes; record the numbers of messages that are left."""
    begin = state.now
    while True:
        left = [await broker.left() for broker in brokers]
        is_empty = not state.acknowledged and not any(any(channels.values()) for channels in left)
        quiet = state.now - max(state.delivered, begin)
        if is_empty or quiet > QUIET_S or state.now - begin > DRAIN_LIMIT_S:
            break
        await state.pause(0.2)
    for number, channels in enumerate(left):
        for channel, count in channels.items():
            state.record("left", broker=number, channel=channel, count=count)


__all__ = ["CHANNELS", "MSG_TIMEOUT_S", "SYNC_TIMEOUT_S", "BrokerFailed", "Plan", "run"]
