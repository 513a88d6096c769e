"""Consumers in the partitions of an RDD.

The driver has no connection. Each task connects on its executor while it runs, and has finished the messages that it
processed before it is done.

``foreach_partition`` and ``drain_to`` are whole jobs. ``map_partitions`` returns a function for
``RDD.mapPartitionsWithIndex``. It reads the partition's input to its end without using it, because Spark reuses a
Python worker only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import PartitionShare, named_nodes, plan_spec
from nsqkit.spark.drainer import Handler, PartitionStats, drain_to_handler
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.schema import MessageRow
from nsqkit.spark.sink import Sink

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")


def seed_rdd(sc: SparkContext, spec: ConsumerSpec) -> RDD[int]:
    """Return an RDD with a partition for each of the spec's, for ``mapPartitionsWithIndex``."""
    count = len(_shares(spec))
    return sc.parallelize(range(count), count)


def foreach_partition(sc: SparkContext, spec: ConsumerSpec, handler: Handler) -> list[PartitionStats]:
    """Consume in every partition: process, then finish.

    At least once: a task that fails requeues its unfinished messages, and Spark tries the task again.

    Args:
        sc: the context of a session: ``spark.sparkContext``.
        spec: the channel and the limits.
        handler: called on the executors with each chunk, a list of ``MessageRow``. When it returns, the messages
            are finished; when it raises, they are requeued and the task fails.

    Returns:
        The figures of each partition.

    Raises:
        Exception: Spark's, if a task failed as often as it may (``spark.task.maxFailures``).
    """
    return _run(sc, spec, handler)


def drain_to(sc: SparkContext, spec: ConsumerSpec, sink: Sink) -> list[PartitionStats]:
    """Consume in every partition: write to a sink, then finish; otherwise as ``foreach_partition``.

    At least once; effectively once for readers who deduplicate on ``KEY_COLUMNS``.
    """
    return _run(sc, spec, sink.write, sink)


def map_partitions(
    spec: ConsumerSpec, fn: Callable[[Sequence[MessageRow]], Iterable[T]]
) -> Callable[[int, Iterable[object]], Iterator[T]]:
    """Return a function for ``mapPartitionsWithIndex`` that consumes and returns the results of ``fn``.

    The messages of a chunk are finished when ``fn`` has returned, so ``fn`` must store durable results itself. Its
    results are in memory until the partition ends. If Spark computes a partition again, it consumes other messages.

    Args:
        spec: the channel and the limits.
        fn: called on the executors with each chunk.
    """
    return _Map(spec, fn)


def _run(sc: SparkContext, spec: ConsumerSpec, handler: Handler, sink: Sink | None = None) -> list[PartitionStats]:
    work = _Foreach(spec, handler, sink)
    stats: list[PartitionStats] = seed_rdd(sc, spec).mapPartitionsWithIndex(work).collect()
    return stats


@attrs.frozen
class _Foreach:
    spec: ConsumerSpec
    handler: Handler
    sink: Sink | None

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[PartitionStats]:
        stats = drain_to_handler(self.spec, _share(self.spec, index, seed), self.handler)
        if self.sink is not None:
            self.sink.close()
        yield stats


@attrs.frozen
class _Map(Generic[T]):
    spec: ConsumerSpec
    fn: Callable[[Sequence[MessageRow]], Iterable[T]]

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[T]:
        results: list[T] = []
        drain_to_handler(self.spec, _share(self.spec, index, seed), lambda rows: results.extend(self.fn(rows)))
        return iter(results)


def _share(spec: ConsumerSpec, index: int, seed: Iterable[object]) -> PartitionShare:
    """Read the input to its end, and return the work of this partition."""
    for _ in seed:
        pass
    shares = _shares(spec)
    if index >= len(shares):
        raise OptionError(
            f"this is partition {index}, and the spec has {len(shares)} of them: allowed is an RDD with as many "
            "partitions as the spec, such as seed_rdd(sc, spec)"
        )
    return shares[index]


def _shares(spec: ConsumerSpec) -> tuple[PartitionShare, ...]:
    if spec.lookupd_http_addresses:
        raise OptionError("lookupd_http_addresses is set; allowed are nsqd_tcp_addresses in the partitions of an RDD")
    return plan_spec(spec, named_nodes(spec))
