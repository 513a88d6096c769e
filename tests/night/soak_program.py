"""A broker and its clients for hours at a constant rate: memory must not grow, and latency must not drift.

``python -m tests.night.soak_program --minutes 120`` runs an nsqd process, and a producer and a consumer in this one. It
prints one line of figures, and ends with status 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
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
"""Seconds between two batches."""

SAMPLES: Final = 60
GROWTH_MAX: Final = 1.0
"""MB an hour, and MB in a run of less than an hour: caches still fill in it."""

DRIFT_MAX: Final = 1.1
"""The median latency of the last quarter, relative to that of the second one."""


@attrs.frozen
class Sample:
    """The state after a part of the time.

    Attributes:
        hours: since the start.
        broker_mb: resident memory of the broker.
        client_mb: resident memory of the clients.
        latency_ms: median of the part, from publish to handler.
    """

    hours: float
    broker_mb: float
    client_mb: float
    latency_ms: float


@attrs.frozen
class Trend:
    """What changed from the second quarter of the time to the last.

    Attributes:
        hours: the time from the first sample to the last.
        broker_growth: MB an hour.
        client_growth: MB an hour.
        drift: the last latency relative to the first.
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
            found.append(f"the latency rose to {self.drift:.2f} of its first value, and may rise to {DRIFT_MAX}")
        return found


def trend(samples: Sequence[Sample]) -> Trend:
    """Return the trend of samples in order; the first quarter is left out, since caches fill in it."""
    rest = samples[len(samples) // 4 :]
    hours = [sample.hours for sample in rest]
    third = len(rest) // 3
    return Trend(
        hours[-1] - hours[0],
        linear_regression(hours, [sample.broker_mb for sample in rest]).slope,
        linear_regression(hours, [sample.client_mb for sample in rest]).slope,
        median(sample.latency_ms for sample in rest[-third:]) / median(sample.latency_ms for sample in rest[:third]),
    )


async def soak(broker: BrokerProcess, minutes: float) -> list[Sample]:
    """Publish and consume; return a sample of each part of the time."""
    latencies: list[float] = []
    samples: list[Sample] = []

    async def handle() -> None:
        async for message in consumer:
            latencies.append((time.monotonic_ns() - int(message.body)) / 1e6)
            message.finish()

    async def publish() -> None:
        while True:
            await producer.multi_publish("soak", [b"%d" % time.monotonic_ns()] * round(RATE * PERIOD))
            await anyio.sleep(PERIOD)

    begin = time.monotonic()
    async with (
        Producer(broker.address) as producer,
        Consumer("soak", "soak", nsqd_tcp_addresses=[broker.address], max_in_flight=RATE) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(handle)
        tasks.start_soon(publish)
        for number in range(1, SAMPLES + 1):
            await anyio.sleep(begin + number * minutes * 60 / SAMPLES - time.monotonic())
            hours = (time.monotonic() - begin) / 3600
            memory = (broker.memory_bytes() / 1e6, memory_bytes(os.getpid()) / 1e6)
            samples.append(Sample(hours, *memory, median(latencies)))
            latencies.clear()
        tasks.cancel_scope.cancel()
    return samples


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.night.soak_program", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="the duration (default: %(default)s)")
    minutes = parser.parse_args().minutes
    with BrokerProcess(NSQKIT_NSQD, "--durability=fsync") as broker:
        samples = anyio.run(soak, broker, minutes)
    found = trend(samples)
    print(
        f"{minutes:g} minutes of {RATE} messages/s: broker {samples[-1].broker_mb:.1f} MB "
        f"({found.broker_growth:+.2f} MB/h), clients {samples[-1].client_mb:.1f} MB ({found.client_growth:+.2f} MB/h), "
        f"latency {samples[-1].latency_ms:.2f} ms ({found.drift:.2f} of the second quarter)"
    )
    print(*found.exceeded, sep="\n", end="\n" if found.exceeded else "")
    return 1 if found.exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
