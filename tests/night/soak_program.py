"""A broker and its clients for hours at a constant rate: memory must not grow, and latency must not drift.

``python -m tests.night.soak_program --minutes 120`` runs an nsqd process, and a producer and a consumer in this one. It
prints one line of figures, and ends with status 1 if a limit is exceeded.

The machine gets slower and faster by itself. So each part of the time has a new broker and new clients as well, which
have the same rate. It is the latency relative to theirs that must not rise.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from statistics import linear_regression, median
from typing import Final

import anyio
import attrs

from nsqkit import Consumer, Producer
from tests.benchmarks.harness import NSQKIT_NSQD, BrokerProcess, memory_bytes

RATE: Final = 500
"""Messages a second, nearly."""

PERIOD: Final = 0.02
"""Seconds between two batches, on average."""

OTHER: Final = b"other"
"""A message whose latency is not kept: long lists of figures would be most of the growth that is looked for."""

SAMPLES: Final = 60
PART_MIN: Final = 2.0
"""Seconds of a part, at least: new clients need some to connect."""

GROWTH_MAX: Final = 1.0
"""MB an hour, and MB in a run of less than an hour: caches still fill in it."""

DRIFT_MAX: Final = 1.1
"""The median relative latency of the last quarter, relative to that of the second one."""


@attrs.frozen
class Sample:
    """The state after a part of the time.

    Attributes:
        hours: since the start.
        broker_mb: resident memory of the broker.
        client_mb: resident memory of the clients.
        latency_ms: median of the part, from publish to handler.
        new_latency_ms: the same with the broker and the clients that are new in this part.
    """

    hours: float
    broker_mb: float
    client_mb: float
    latency_ms: float
    new_latency_ms: float

    @property
    def relative_latency(self) -> float:
        """The latency relative to that of new clients."""
        return self.latency_ms / self.new_latency_ms


@attrs.frozen
class Trend:
    """What changed from the second quarter of the time to the last.

    Attributes:
        hours: the time from the first sample to the last.
        broker_growth: MB an hour.
        client_growth: MB an hour.
        drift: the last relative latency, relative to the first.
    """

    hours: float
    broker_growth: float
    client_growth: float
    drift: float

    @property
    def exceeded(self) -> list[str]:
        """The limits that were exceeded, as sentences."""
        found = [
            f"the {name} grew by {growth:.2f} MB an hour, and may grow by {GROWTH_MAX}"
            for name, growth in (("broker", self.broker_growth), ("client", self.client_growth))
            if growth * min(self.hours, 1.0) >= GROWTH_MAX
        ]
        if self.drift >= DRIFT_MAX:
            found.append(f"the latency rose by a factor of {self.drift:.2f}, and may rise by {DRIFT_MAX}")
        return found


def trend(samples: Sequence[Sample]) -> Trend:
    """Return the trend of samples in order; the first quarter is left out, since caches fill in it."""
    rest = samples[len(samples) // 4 :]
    hours = [sample.hours for sample in rest]
    third = len(rest) // 3
    first, last = (median(sample.relative_latency for sample in part) for part in (rest[:third], rest[-third:]))
    return Trend(
        hours[-1] - hours[0],
        linear_regression(hours, [sample.broker_mb for sample in rest]).slope,
        linear_regression(hours, [sample.client_mb for sample in rest]).slope,
        last / first,
    )


async def publish_and_consume(address: str, latencies: list[float]) -> None:
    """Publish and consume until it is cancelled; append the latency of each batch's first message, in milliseconds."""
    others = [OTHER] * (round(RATE * PERIOD) - 1)

    async def publish() -> None:
        while True:
            await producer.multi_publish("soak", [b"%d" % time.monotonic_ns(), *others])
            # Two programs with the same period would keep their distance in time, and one always come second.
            await anyio.sleep(random.uniform(0, 2 * PERIOD))

    async with (
        Producer(address) as producer,
        Consumer("soak", "soak", nsqd_tcp_addresses=[address], max_in_flight=RATE) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(publish)
        async for message in consumer:
            if message.body != OTHER:
                latencies.append((time.monotonic_ns() - int(message.body)) / 1e6)
            message.finish()


async def latency_with_new_broker(seconds: float) -> float:
    """Publish and consume with a new broker; return the median latency, in milliseconds."""
    latencies: list[float] = []
    with new_broker() as broker, anyio.move_on_after(seconds):
        await publish_and_consume(broker.address, latencies)
    return median(latencies)


def new_broker() -> BrokerProcess:
    return BrokerProcess(NSQKIT_NSQD, "--durability=fsync")


async def soak(broker: BrokerProcess, minutes: float) -> list[Sample]:
    """Publish and consume; return a sample of each part of the time."""
    latencies: list[float] = []
    samples: list[Sample] = []
    begin = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish_and_consume, broker.address, latencies)
        for number in range(1, SAMPLES + 1):
            seconds = max(begin + number * minutes * 60 / SAMPLES - time.monotonic(), PART_MIN)
            # In another process, so that slow clients here do not slow down the new ones.
            new = await anyio.run_process([sys.executable, "-m", __spec__.name, "--new", str(seconds)])
            hours = (time.monotonic() - begin) / 3600
            memory = (broker.memory_bytes() / 1e6, memory_bytes(os.getpid()) / 1e6)
            samples.append(Sample(hours, *memory, median(latencies), float(new.stdout)))
            latencies.clear()
        tasks.cancel_scope.cancel()
    return samples


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.night.soak_program", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="at least 3 (default: %(default)s)")
    parser.add_argument("--new", type=float, metavar="SECONDS", help="print the latency of new clients, and do no more")
    options = parser.parse_args()
    if options.new:
        print(anyio.run(latency_with_new_broker, options.new))
        return 0
    with new_broker() as broker:
        samples = anyio.run(soak, broker, options.minutes)
    found = trend(samples)
    print(
        f"{60 * samples[-1].hours:.1f} minutes of {RATE} messages/s: broker {samples[-1].broker_mb:.1f} MB "
        f"({found.broker_growth:+.2f} MB/h), clients {samples[-1].client_mb:.1f} MB ({found.client_growth:+.2f} MB/h), "
        f"latency {samples[-1].latency_ms:.2f} ms, of new clients {samples[-1].new_latency_ms:.2f} ms, and the ratio "
        f"{found.drift:.2f} of that of the second quarter"
    )
    print(*found.exceeded, sep="\n", end="\n" if found.exceeded else "")
    return 1 if found.exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
