"""Measures consuming the messages of a full channel, in each of nsqkit's three ways."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.clients import Figure, Prepare, nsqkit_subjects, peer_subjects, rows
from tests.benchmarks.harness import Bench, BrokerProcess
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

MAX_IN_FLIGHT = 2500
COUNT = 300_000
PEER_COUNT = 30_000
"""Peers take ten times longer per message; with this factor all take about as long."""

# Mode of nsqkit's program, name of the row, allowed CPU seconds per 100,000 messages.
WAYS = (
    ("consume-sync", "consume, sync handler", 0.15),
    ("consume-async", "consume, async handler", 0.25),
    ("consume-batches", "consume, batches", None),
)

SLACK = 20_000
"""Messages beyond the counted ones: nsqd holds the end of a queue in its output buffer, up to 250 ms."""


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each way of consuming; a peer has one way, which is compared with each."""
    with bench.serve() as broker:
        task = Assignment(
            mode="consume",
            address=broker.address,
            count=bench.effort.count(COUNT),
            max_in_flight=MAX_IN_FLIGHT,
        )
        subjects = {
            f"{mode} {loop}": subject
            for mode, _, _ in WAYS
            for loop, subject in nsqkit_subjects(bench, attrs.evolve(task, mode=mode), filled(broker, task)).items()
        }
        peer_task = attrs.evolve(task, count=bench.effort.count(PEER_COUNT))
        subjects.update(peer_subjects(bench, peer_task, filled(broker, peer_task)))
        samples = bench.take_turns(subjects)
    for mode, what, cpu_seconds_max in WAYS:
        own = {name.removeprefix(f"{mode} "): sample for name, sample in samples.items()}
        floors = () if cpu_seconds_max is None else (Floor(at_most=cpu_seconds_max), Floor(ratio=10, peer="pynsq"))
        cpu = Figure("cpu_per_100k", "CPU s/100 k", less_is_better=True, floors=floors)
        yield from rows(bench, what, own, [Figure("per_second", "msg/s"), cpu])


def filled(broker: BrokerProcess, task: Assignment) -> Prepare:
    """Return a function that fills a topic with the messages of a task."""

    def prepare(topic: str) -> None:
        raw_client.make_channel(broker.address, topic)
        raw_client.fill(broker.address, topic, task.count + SLACK)

    return prepare
