"""Measures an idle broker: memory, and CPU time over some seconds.

Everything is set up first; then the clients only answer heartbeats, of which each connection gets exactly one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.crowd import Crowd, allow_connections
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

CONNECTIONS: Final = 10_000
CHANNELS: Final = 10_000
SECONDS: Final = 30.0
"""Seconds without traffic, and the heartbeat interval: nsqd's default."""

SECONDS_MIN: Final = 1.0
SETTLE_SECONDS: Final = 0.5

MEMORY_MAX: Final = 250.0
"""MB that the broker's process may have with so many connections."""

CPU_MAX: Final = 5.0
"""Percent of a core."""

FEW_QUEUED: Final = ("--mem-queue-size=10000",)
TOPIC: Final = "idle"
DELAY_MS: Final = 600_000


def measure(bench: Bench) -> Iterator[Row]:
    """Measure many connections, then many channels with a timer each; one round, since figures are averages."""
    seconds = max(SECONDS * bench.effort.scale, SECONDS_MIN)
    once = Bench(attrs.evolve(bench.effort, rounds=1), notes=bench.notes)
    count = bench.effort.count(CONNECTIONS)
    if allow_connections(count):
        runs = {name: partial(_connections, command, count, seconds) for name, command in bench.brokers.items()}
        yield from _rows(f"idle, {count:,} subscribed connections", once.take_turns(runs), MEMORY_MAX)
    else:
        bench.notes.append(f"the limit of open files (ulimit -Hn) does not allow {count:,} connections")
    count = bench.effort.count(CHANNELS)
    runs = {name: partial(_channels, command, count, seconds) for name, command in bench.brokers.items()}
    yield from _rows(f"idle, {count:,} channels, each with a deferred message", once.take_turns(runs), None)


def _rows(what: str, samples: Mapping[str, Sample], memory_max: float | None) -> Iterator[Row]:
    if "nsqkit" not in samples:
        return
    for unit, at_most in (("MB", memory_max), ("% of a core", CPU_MAX)):
        figures = {name: sample[unit] for name, sample in samples.items()}
        yield Row(
            what=what,
            unit=unit,
            value=figures.pop("nsqkit"),
            peers=figures,
            less_is_better=True,
            floors=[Floor(at_most=at_most)] if at_most else (),
        )


def _connections(command: Sequence[str], count: int, seconds: float) -> Sample:
    with (
        BrokerProcess(command, *FEW_QUEUED) as broker,
        Crowd(broker.address, TOPIC, count, heartbeat_ms=round(seconds * 1000)),
    ):
        return _rest(broker, seconds)


def _channels(command: Sequence[str], count: int, seconds: float) -> Sample:
    with serve_channels(command, count, *FEW_QUEUED) as broker:
        return _rest(broker, seconds)


@contextmanager
def serve_channels(command: Sequence[str], count: int, *flags: str) -> Iterator[BrokerProcess]:
    """Start a broker with many channels of one topic, each with a deferred message.

    The channels exist from the start: nsqd writes all their names each time one is created.
    """
    channels = [{"name": f"channel-{number}", "paused": False} for number in range(count)]
    document = {"topics": [{"name": TOPIC, "paused": False, "channels": channels}], "version": "1.3.0"}
    with TemporaryDirectory() as folder:
        Path(folder, "nsqd.dat").write_text(json.dumps(document), encoding="utf-8")
        with BrokerProcess(command, *flags, f"--data-path={folder}") as broker:
            with raw_client.connect(broker.address) as connection:
                raw_client.ask(connection, raw_client.deferred_command(TOPIC, DELAY_MS))
            yield broker


def _rest(broker: BrokerProcess, seconds: float) -> Sample:
    time.sleep(SETTLE_SECONDS)
    before = broker.cpu_seconds()
    time.sleep(seconds)
    cpu_seconds = broker.cpu_seconds() - before
    return {"MB": broker.memory_bytes() / 1e6, "% of a core": cpu_seconds / seconds * 100}
