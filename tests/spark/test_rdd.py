"""Consumers in the partitions of a real Spark session, with tasks that fail. Needs Java: `tox -e spark`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.dataset as ds
import pytest

from nsqkit import OptionError
from nsqkit.spark.batch_plan import named_nodes, plan_spec
from nsqkit.spark.discovery import Backlog
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.rdd import drain_to, foreach_partition, map_partitions, nsq_rdd, seed_rdd
from nsqkit.spark.schema import KEY_COLUMNS
from nsqkit.spark.sink import ParquetSink
from nsqkit.testing.servers import NsqlookupdServer
from tests.spark.test_discovery import start_nsqd
from tests.spark.time_limits import FIRST_DELIVERY_MAX

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

COUNT = 3000
"""Messages on each of two brokers."""


@pytest.fixture
def brokers(make_broker: Callable[..., Broker]) -> list[Broker]:
    brokers = [make_broker(http_address="127.0.0.1:0"), make_broker(http_address="127.0.0.1:0")]
    for name, broker in zip("ab", brokers, strict=True):
        broker.publish("t", [b"%s-%d" % (name.encode(), n) for n in range(COUNT)])
    return brokers


BODIES = sorted(b"%s-%d" % (name, n) for name in (b"a", b"b") for n in range(COUNT))


def make_spec(brokers: list[Broker], **options: Any) -> ConsumerSpec:
    options = {"partitions": 4, "max_in_flight": 1000, "empty_for": FIRST_DELIVERY_MAX, **options}
    return ConsumerSpec(
        topics="t",
        channel="c",
        nsqd_tcp_addresses=[broker.address for broker in brokers],
        nsqd_http_addresses=[broker.nsqd.http_address for broker in brokers if broker.nsqd.http_address],
        **options,
    )


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
    assert [found.partition for found in stats.partitions] == [0, 1, 2, 3]
    assert stats.finished_count == 2 * COUNT
    assert stats.left == Backlog(depth=0, in_flight=0, deferred=0, finished_count=2 * COUNT)


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


def test_there_is_a_partition_for_each_core(sc: Any, brokers: list[Broker]):
    assert seed_rdd(sc, make_spec(brokers, partitions=None)).getNumPartitions() == 2
    assert seed_rdd(sc, make_spec(brokers, partitions=None, max_partitions=1)).getNumPartitions() == 1
    assert seed_rdd(sc, make_spec(brokers, partitions=5)).getNumPartitions() == 5


def test_an_rdd_is_computed_again_from_its_log(sc: Any, brokers: list[Broker], tmp_path: Path):
    rdd = nsq_rdd(sc, make_spec(brokers), str(tmp_path))
    first = sorted(rdd.collect())
    assert [row.body for row in sorted(first, key=lambda row: row.body)] == BODIES
    assert depth(brokers) == 0
    assert sorted(rdd.collect()) == first
    assert rdd.union(rdd).count() == 4 * COUNT


def test_an_rdd_whose_task_fails_loses_no_message(sc: Any, brokers: list[Broker], tmp_path: Path):
    once = Once(str(tmp_path / "killed"), kill)

    def body(row):
        once()
        return row.body

    assert sorted(nsq_rdd(sc, make_spec(brokers), str(tmp_path / "wal")).map(body).collect()) == BODIES
    assert (tmp_path / "killed").exists()


def test_rows_that_an_earlier_rdd_left_are_refused_or_adopted(sc: Any, brokers: list[Broker], tmp_path: Path):
    spec = make_spec(brokers)
    nsq_rdd(sc, spec, str(tmp_path)).count()
    with pytest.raises(OptionError, match="onOrphanedWal"):
        nsq_rdd(sc, spec, str(tmp_path), on_orphaned_wal="fail")
    assert nsq_rdd(sc, spec, str(tmp_path)).count() == 0
    assert nsq_rdd(sc, spec, str(tmp_path), on_orphaned_wal="adopt").count() == 2 * COUNT


def test_workers_are_used_again(sc: Any, broker: Broker):
    spec = make_spec([broker], partitions=2, empty_for=0.1)
    pids = set()
    for _ in range(6):
        broker.publish("t", [b"%d" % number for number in range(100)])
        rdd = seed_rdd(sc, spec).mapPartitionsWithIndex(map_partitions(spec, lambda rows: [os.getpid()]))
        pids.update(rdd.collect())
    # A worker that is not used again adds one for each job; other tests may have left some that wait.
    assert 0 < len(pids) < 6


def test_the_input_of_a_partition_is_read_to_its_end(broker: Broker):
    broker.publish("t", [b"one"])
    spec = make_spec([broker], partitions=1)
    seed = iter(plan_spec(spec, named_nodes(spec)))
    assert list(map_partitions(spec, lambda rows: [row.body for row in rows])(0, seed)) == [b"one"]
    assert list(seed) == []


@pytest.mark.parametrize("seed", [[], [7], ["a", "b"]])
def test_another_rdd_is_refused(broker: Broker, seed: list[object]):
    with pytest.raises(OptionError, match=r"partition 3 is .*; allowed is an RDD of seed_rdd\(sc, spec\)"):
        map_partitions(make_spec([broker], partitions=1), list)(3, seed)


def test_a_topic_that_no_nsqd_has_is_refused(sc: Any):
    with NsqlookupdServer() as lookupd:
        spec = ConsumerSpec(topics=["t", "u"], channel="c", lookupd_http_addresses=[lookupd.http_address])
        with pytest.raises(OptionError, match="list no nsqd for 't', 'u'; allowed are topics that have one"):
            foreach_partition(sc, spec, print)


def test_nsqds_are_found_by_nsqlookupd(sc: Any):
    with ExitStack() as running:
        lookupd = running.enter_context(NsqlookupdServer())
        start_nsqd(running, [lookupd], ["t"])
        spec = ConsumerSpec(
            topics="t", channel="c", lookupd_http_addresses=[lookupd.http_address], partitions=2, max_messages=1
        )
        stats = foreach_partition(sc, spec, print)
    assert stats.finished_count == 1
    assert stats.left == Backlog(depth=0, in_flight=0, deferred=0, finished_count=1)
