"""Consumers in the partitions of an RDD.

The driver finds the nsqds and divides the limits; it does not consume. Each task gets its share in its partition of the
seed RDD, connects on its executor while it runs, and has finished the messages that it processed before it is done. It
reads its partition of the seed to the end, because Spark reuses a Python worker only then.

``foreach_partition`` and ``drain_to`` are whole jobs. ``map_partitions`` is for a job of the user's own; ``nsq_rdd`` is
for messages that are stored before they are finished, so that Spark can compute its RDD again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import uuid4

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import PartitionShare, plan_spec
from nsqkit.spark.batch_reader import BatchRead
from nsqkit.spark.bounded_run import RunStats, run_bounded
from nsqkit.spark.discovery import Discovery
from nsqkit.spark.drainer import Handler, PartitionStats, drain_to_handler
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.read_task import ReadTask
from nsqkit.spark.schema import MessageRow, message_rows
from nsqkit.spark.sink import Sink
from nsqkit.spark.slots.maintenance import OrphanPolicy
from nsqkit.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")


def seed_rdd(sc: SparkContext, spec: ConsumerSpec) -> RDD[PartitionShare]:
    """Return an RDD with the share of each partition, for ``mapPartitionsWithIndex``.

    If ``partitions`` of the spec is None, there is one for each core (``sc.defaultParallelism``), up to
    ``max_partitions``: with more, some would begin when others have ended, and each waits ``empty_for`` at its end.

    Args:
        sc: the context of a session: ``spark.sparkContext``.
        spec: the channel and the limits.

    Raises:
        OptionError: no nsqd has the topics, or there are more of them than ``max_in_flight``.
    """
    return _parallelize(sc, _plan(sc, spec, Discovery(spec)))


def foreach_partition(sc: SparkContext, spec: ConsumerSpec, handler: Handler) -> RunStats:
    """Consume in every partition: process, then finish.

    At least once: a task that fails requeues its unfinished messages, and Spark tries the task again.

    Args:
        sc: the context of a session: ``spark.sparkContext``.
        spec: the channel and the limits.
        handler: called on the executors with each chunk, a list of ``MessageRow``. If it returns None, all messages
            are finished; otherwise it returns an ``Ack`` for each row, ``FINISH`` or ``Requeue(delay)``. If it raises,
            the chunk is requeued and the task fails.

    Returns:
        The figures of each partition, and the messages that the run leaves, which it also logs.

    Raises:
        OptionError: as ``seed_rdd``.
        Exception: Spark's, if a task failed as often as it may (``spark.task.maxFailures``).
    """
    return _run(sc, spec, _Foreach(spec, handler))


def drain_to(sc: SparkContext, spec: ConsumerSpec, sink: Sink) -> RunStats:
    """Consume in every partition: write to a sink, then finish; otherwise as ``foreach_partition``.

    At least once; effectively once for readers who deduplicate on ``KEY_COLUMNS``.
    """
    return _run(sc, spec, _DrainTo(spec, sink))


def map_partitions(
    spec: ConsumerSpec, fn: Callable[[Sequence[MessageRow]], Iterable[T]]
) -> Callable[[int, Iterable[object]], Iterator[T]]:
    """Return a function for ``mapPartitionsWithIndex`` of ``seed_rdd`` that consumes and returns the results of ``fn``.

    The messages of a chunk are finished when ``fn`` has returned, so ``fn`` must store durable results itself. Its
    results are in memory until the partition ends. If Spark computes a partition again, it consumes other messages;
    ``nsq_rdd`` has the same ones.

    Args:
        spec: the channel and the limits.
        fn: called on the executors with each chunk.
    """
    return _Map(spec, fn)


def nsq_rdd(
    sc: SparkContext, spec: ConsumerSpec, wal_location: str, *, on_orphaned_wal: OrphanPolicy = "ignore"
) -> RDD[MessageRow]:
    """Return an RDD of messages that has the same ones each time it is computed.

    The first action receives messages, stores them at ``wal_location``, and finishes them. Each later action, and each
    task that Spark runs again, reads the same rows from there. They stay there; remove the location when the results
    are durable.

    Args:
        sc: the context of a session: ``spark.sparkContext``.
        spec: the channel and the limits.
        wal_location: a directory or the URL of an object store, which the driver and all executors share.
        on_orphaned_wal: the treatment of rows that earlier RDDs and batch reads of the same topics and channel left
            there. With "ignore" they stay there; with "adopt" they are also rows of this RDD, for a run after one that
            failed; with "fail" they are refused.

    Raises:
        OptionError: as ``seed_rdd``; the location cannot be used, or has rows and ``on_orphaned_wal`` is "fail".
    """
    options = SourceOptions(
        spec=_with_partitions(sc, spec),
        ack_mode="wal",
        wal_location=wal_location,
        wal_retain_batches=0,
        dedup_horizon_ms=0,
        on_orphaned_wal=on_orphaned_wal,
        depth_check="http",
        until="",
        available_now_timeout_ms=None,
    )
    tasks = BatchRead(options, uuid4().hex, Discovery(spec)).tasks()
    return _parallelize(sc, tasks).mapPartitions(_Replay(spec))


def _with_partitions(sc: SparkContext, spec: ConsumerSpec) -> ConsumerSpec:
    count = spec.partitions or min(sc.defaultParallelism, spec.max_partitions)
    return attrs.evolve(spec, partitions=count)


def _plan(sc: SparkContext, spec: ConsumerSpec, cluster: Discovery) -> Sequence[PartitionShare]:
    return plan_spec(_with_partitions(sc, spec), cluster.nodes())


def _parallelize(sc: SparkContext, items: Sequence[T]) -> RDD[T]:
    """Return an RDD with one item in each partition."""
    return sc.parallelize(items, len(items))


def _run(sc: SparkContext, spec: ConsumerSpec, work: _Foreach | _DrainTo) -> RunStats:
    cluster = Discovery(spec)

    def run(limited: ConsumerSpec) -> list[PartitionStats]:
        shares = _plan(sc, limited, cluster)
        stats: list[PartitionStats] = _parallelize(sc, shares).mapPartitionsWithIndex(work).collect()
        return stats

    return run_bounded(spec, run, cluster.backlog)


@attrs.frozen
class _Replay:
    spec: ConsumerSpec

    def __call__(self, tasks: Iterable[ReadTask]) -> Iterator[MessageRow]:
        for task in list(tasks):
            for batch in task.read(self.spec):
                yield from message_rows(batch)


@attrs.frozen
class _Foreach:
    spec: ConsumerSpec
    handler: Handler

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[PartitionStats]:
        yield drain_to_handler(self.spec, _share(index, seed), self.handler)


@attrs.frozen
class _DrainTo:
    spec: ConsumerSpec
    sink: Sink

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[PartitionStats]:
        stats = drain_to_handler(self.spec, _share(index, seed), self._write)
        self.sink.close()
        yield stats

    def _write(self, rows: Sequence[MessageRow]) -> None:
        # A result of the sink would be taken for acks.
        self.sink.write(rows)


@attrs.frozen
class _Map(Generic[T]):
    spec: ConsumerSpec
    fn: Callable[[Sequence[MessageRow]], Iterable[T]]

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[T]:
        results: list[T] = []
        drain_to_handler(self.spec, _share(index, seed), lambda rows: results.extend(self.fn(rows)))
        return iter(results)


def _share(index: int, seed: Iterable[object]) -> PartitionShare:
    """Read the input of a partition to its end, and return its share."""
    found = list(seed)
    if len(found) != 1 or not isinstance(found[0], PartitionShare):
        raise OptionError(f"partition {index} is {found!r:.80}; allowed is an RDD of seed_rdd(sc, spec)")
    return found[0]
