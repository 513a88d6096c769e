"""How much a broker takes in and gives out, and what that costs it: raw sockets on the other side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

COUNT = 1_000_000
FLOORS = (Floor(at_most=1.0),)

WAYS = {
    "in": f"broker in, MPUB of {raw_client.BATCH}, {raw_client.CONNECTIONS} connections",
    "out": f"broker out, RDY {raw_client.RDY}, {raw_client.CONNECTIONS} connections",
}


def measure(bench: Bench) -> Iterator[Row]:
    """Fill a channel and empty it again."""
    count = bench.effort.count(COUNT)
    samples = bench.take_turns(
        {name: partial(_run, command, count) for name, command in bench.brokers.items()}
    )
    ours = samples.pop("nsqkit")
    for way, what in WAYS.items():
        rate, cost = f"{way}_per_second", f"{way}_cpu_per_million"
        yield Row(
            what=what, unit="msg/s", value=ours[rate], peers={name: s[rate] for name, s in samples.items()}
        )
        yield Row(
            what=what,
            unit="CPU s/1 M",
            value=ours[cost],
            peers={name: sample[cost] for name, sample in samples.items()},
            less_is_better=True,
            floors=FLOORS,
        )


def _run(command: Sequence[str], count: int) -> Sample:
    with BrokerProcess(command) as broker:
        topic = "throughput"
        raw_client.make_channel(broker.address, topic)
        watch = _Watch(broker)
        raw_client.fill(broker.address, topic, count)
        figures = watch.figures("in", count)
        raw_client.fill(broker.address, topic, raw_client.SLACK)
        raw_client.drain(broker.address, topic, count, watch.start)
        return {**figures, **watch.figures("out", count)}


class _Watch:
    """The time that passes, and the CPU that a broker uses meanwhile."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._cpu_seconds = broker.cpu_seconds
        self.start()

    def start(self) -> None:
        self._begin, self._cpu = time.perf_counter(), self._cpu_seconds()

    def figures(self, way: str, count: int) -> Sample:
        seconds = time.perf_counter() - self._begin
        cpu_seconds = self._cpu_seconds() - self._cpu
        return {f"{way}_per_second": count / seconds, f"{way}_cpu_per_million": cpu_seconds / count * 1e6}
