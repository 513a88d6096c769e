"""Consumers in the partitions of a real Spark session, with tasks that fail. Needs Java: `tox -e spark`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.dataset as ds
import pytest

from nsqkit import OptionError
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.rdd import drain_to, foreach_partition, map_partitions, seed_rdd
from nsqkit.spark.schema import KEY_COLUMNS
from nsqkit.spark.sink import ParquetSink

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

COUNT = 3000
"""Messages on each of two brokers."""


@pytest.fixture
def brokers(make_broker: Callable[[], Broker]) -> list[Broker]:
    brokers = [make_broker(), make_broker()]
    for name, broker in zip("ab", brokers, strict=True):
        broker.publish("t", [b"%s-%d" % (name.encode(), n) for n in range(COUNT)])
    return brokers


BODIES = sorted(b"%s-%d" % (name, n) for name in (b"a", b"b") for n in range(COUNT))


def make_spec(brokers: list[Broker], **options: Any) -> ConsumerSpec:
    options = {"partitions": 4, "max_in_flight": 1000, "empty_for": 0.5, **options}
    return ConsumerSpec(topics="t", channel="c", nsqd_tcp_addresses=[broker.address for broker in brokers], **options)


def depth(brokers: list[Broker]) -> int:
    return sum(broker.depth("t", "c") for broker in brokers)


def read(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory).to_table().to_pylist()
    return rows


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return the bodies after deduplication on the key."""
    return sorted({tuple(row[name] for name in KEY_COLUMNS): row["body"] for row in rows}.values())


@attrs.frozen
class Once:
    """Acts on the first chunk of all tasks only; a file marks that it has."""

    marker: str
    act: Callable[[], None]

    def __call__(self) -> None:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.act()


@attrs.frozen
class FailingSink:
    """A sink that calls a function before or after it writes a chunk."""

    sink: ParquetSink
    before: Callable[[], object] = int
    after: Callable[[], object] = int

    def write(self, rows):
        self.before()
        self.sink.write(rows)
        self.after()

    def close(self):
        self.sink.close()


def fail() -> None:
    raise RuntimeError("this chunk, once")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_partitions_finish_all_messages(sc: Any, brokers: list[Broker], tmp_path: Path):
    stats = drain_to(sc, make_spec(brokers), ParquetSink(tmp_path))
    rows = read(tmp_path)
    assert sorted(row["body"] for row in rows) == BODIES
    assert len(list(tmp_path.iterdir())) <= 4
    assert depth(brokers) == 0
    assert [found.partition for found in stats] == [0, 1, 2, 3]
    assert sum(found.finished_count for found in stats) == 2 * COUNT


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_task_is_tried_again_without_loss(sc: Any, brokers: list[Broker], tmp_path: Path, when: str):
    once = Once(str(tmp_path / "failed"), fail)
    drain_to(sc, make_spec(brokers), FailingSink(ParquetSink(tmp_path / "lake"), **{when: once}))
    assert (tmp_path / "failed").exists()
    rows = read(tmp_path / "lake")
    assert bodies(rows) == BODIES
    assert depth(brokers) == 0
    assert max(row["attempts"] for row in rows) == 2


def test_a_killed_worker_loses_no_message(sc: Any, brokers: list[Broker], tmp_path: Path):
    once = Once(str(tmp_path / "killed"), kill)
    # The other partitions must run until the messages of the dead worker time out.
    spec = make_spec(brokers, msg_timeout=1.0, empty_for=2.5)
    drain_to(sc, spec, FailingSink(ParquetSink(tmp_path / "lake"), after=once))
    assert (tmp_path / "killed").exists()
    assert bodies(read(tmp_path / "lake")) == BODIES
    assert depth(brokers) == 0


def test_a_task_that_always_fails_finishes_nothing(sc: Any, brokers: list[Broker]):
    def handler(rows):
        raise RuntimeError("every chunk")

    with pytest.raises(Exception, match="every chunk"):
        foreach_partition(sc, make_spec(brokers, partitions=2), handler)
    assert depth(brokers) == 2 * COUNT


def test_the_results_of_a_function_become_an_rdd(sc: Any, brokers: list[Broker]):
    spec = make_spec(brokers, partitions=2)
    rdd = seed_rdd(sc, spec).mapPartitionsWithIndex(map_partitions(spec, lambda rows: [len(rows)]))
    assert sum(rdd.collect()) == 2 * COUNT
    assert depth(brokers) == 0


def test_the_input_of_a_partition_is_read_to_its_end(broker: Broker):
    broker.publish("t", [b"one"])
    spec = make_spec([broker], partitions=1)
    seed = iter([1, 2, 3])
    assert list(map_partitions(spec, lambda rows: [row.body for row in rows])(0, seed)) == [b"one"]
    assert list(seed) == []


def test_an_rdd_with_too_many_partitions_is_refused(broker: Broker):
    with pytest.raises(OptionError, match="this is partition 1, and the spec has 1 of them"):
        map_partitions(make_spec([broker], partitions=1), list)(1, [])
