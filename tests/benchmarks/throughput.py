"""Measures the throughput of a broker and its CPU time: in memory, on disk, through each layer.

Rates are the clients', CPU time is the broker's, both of the same seconds. A row has a floor if the real nsqd was
measured in the same run.

``CASES`` are the cases, ``_run`` measures one broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Final

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.layers import LAYERS, NEEDS, flags_for, is_available
from tests.benchmarks.table import Floor, Row
from tests.benchmarks.traffic import Flow, Traffic

SECONDS: Final = 1.0
"""Seconds of each measurement."""

SECONDS_MIN: Final = 0.1

UNMEASURED: Final = {"out": 1.0, "both": 1.5}
"""Part of that time (in seconds more) in which the queue is filled before, so that readers always find messages."""

DEPTH_MIN: Final = raw_client.RDY * raw_client.CONNECTIONS
"""Messages that must remain; otherwise the readers may have waited for some."""

ON_DISK: Final = ("--mem-queue-size=0",)


@attrs.frozen(kw_only=True)
class Case:
    """One way of using a broker.

    Attributes:
        what: its name in the table.
        ways: the operations: "in", "out", "both", "single" (in by PUBs), or "writer" (in by
            MPUBs of one message, as nsqd's own bench_writer sends them).
        ratio: the required share of nsqd's rate.
        flags: the broker's.
        layer: the layer between client and broker.
        compares_cpu: whether a message may not cost more CPU time than nsqd's.
    """

    what: str
    ways: Sequence[str] = ("in", "out")
    ratio: float = 1.0
    flags: Sequence[str] = ()
    layer: str = ""
    compares_cpu: bool = False


CASES: Final = (
    Case(what="memory", compares_cpu=True),
    Case(what="memory", ways=("both",), compares_cpu=True),
    Case(what="memory", ways=("single",), ratio=0.85),
    Case(what="memory", ways=("writer",), ratio=0.85),
    Case(what="disk", flags=ON_DISK, ratio=1.5),
    *(Case(what=layer, layer=layer, ratio=0.7) for layer in LAYERS),
)

NAMES: Final = {
    "in": "in, MPUB of 200",
    "out": "out, RDY 2500",
    "both, in": "both at once, in",
    "both, out": "both at once, out",
    "both": "both at once, in and out",
    "single": "in, PUB, 1 outstanding",
    "writer": "in, MPUB of 1, 1 outstanding",
}


def measure(bench: Bench) -> Iterator[Row]:
    """Measure all cases."""
    for case in CASES:
        if "writer" in case.ways and bench.nsq_bench_directory is None:
            continue
        if not is_available(case.layer):
            bench.notes.append(f"{NEEDS[case.layer]} is not installed: broker, {case.what} is left out")
            continue
        samples = bench.take_turns(
            {name: partial(_run, bench, case, name, command) for name, command in bench.brokers.items()}
        )
        if "nsqkit" in samples:
            yield from _rows(case, samples)


def _rows(case: Case, samples: dict[str, Sample]) -> Iterator[Row]:
    ours = samples.pop("nsqkit")
    for key, value in ours.items():
        way, unit = key.rsplit(" ", 1)
        is_rate = unit == "rate"
        floors = [Floor(ratio=case.ratio, peer="nsqd")] if is_rate else []
        if not is_rate and case.compares_cpu:
            floors = [Floor(ratio=1.0, peer="nsqd")]
        yield Row(
            what=f"broker, {case.what}: {NAMES[way]}",
            unit="msg/s" if is_rate else "CPU s/1 M",
            value=value,
            peers={name: sample[key] for name, sample in samples.items()},
            less_is_better=not is_rate,
            floors=floors if samples else (),
        )


def _run(bench: Bench, case: Case, name: str, command: Sequence[str]) -> Sample:
    seconds = max(SECONDS * bench.effort.scale, SECONDS_MIN)
    figures: dict[str, float] = {}
    with (
        TemporaryDirectory() as folder,
        BrokerProcess(command, *case.flags, *flags_for(case.layer, folder)) as broker,
    ):
        raw_client.make_channel(broker.address, raw_client.TOPIC)
        traffic = Traffic(broker.address, layer=case.layer, directory=bench.nsq_bench_directory)
        depth = 0.0
        for way in case.ways:
            if way in UNMEASURED:
                depth += traffic.publish(seconds * UNMEASURED[way]).wait().count
            before = broker.cpu_seconds()
            flows = _flow(way, traffic, seconds)
            cpu_seconds = broker.cpu_seconds() - before
            count = sum(flow.count for flow in flows.values())
            figures |= {f"{key} rate": flow.rate for key, flow in flows.items()}
            figures[f"{way} cpu"] = cpu_seconds / max(count, 1) * 1e6
            depth += sum(-flow.count if key.endswith("out") else flow.count for key, flow in flows.items())
            if way in UNMEASURED and depth < DEPTH_MIN:
                bench.notes.append(f"{name} ran dry in a round of {case.what}: {NAMES[way]}")
    return figures


def _flow(way: str, traffic: Traffic, seconds: float) -> dict[str, Flow]:
    match way:
        case "in":
            return {way: traffic.publish(seconds).wait()}
        case "single":
            return {way: traffic.publish_singly(seconds).wait()}
        case "writer":
            return {way: traffic.publish(seconds, batch=1).wait()}
        case "out":
            return {way: traffic.consume(seconds).wait()}
        case _:
            writer, reader = traffic.publish(seconds), traffic.consume(seconds)
            return {f"{way}, in": writer.wait(), f"{way}, out": reader.wait()}
