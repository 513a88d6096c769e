"""Consumers in the partitions of an RDD.

The rule it guards: the driver holds no connection. Each task makes its own, on its executor, while it runs, and has
finished what it processed before it counts as done.

How to read it: ``foreach_partition`` and ``drain_to`` are whole jobs. ``map_partitions`` is what they are made of:
a function for ``RDD.mapPartitionsWithIndex``. It reads the partition's input to its end, although nothing of use is
in it, because Spark uses a Python worker again only if it has done so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.drain import PartitionStats, Process, drain_partition
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.plan import PartitionPlan, plan_partitions
from nsqkit.spark.schema import MessageRow
from nsqkit.spark.sink import Sink

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")


def seed_rdd(sc: SparkContext, spec: ConsumerSpec) -> RDD[int]:
    """Return an RDD with a partition for each of the spec's, for ``mapPartitionsWithIndex``."""
    return sc.parallelize(range(spec.partition_count), spec.partition_count)


def foreach_partition(sc: SparkContext, spec: ConsumerSpec, handler: Process) -> list[PartitionStats]:
    """Consume in every partition: process, then finish.

    At least once: a task that fails gives back what it had not finished, and Spark tries it again.

    Args:
        sc: the context of a session: ``spark.sparkContext``.
        spec: what is consumed, and until when.
        handler: called on the executors with each chunk, a list of ``MessageRow``. When it returns, the messages
            are done with; when it raises, they go back and the task fails.

    Returns:
        What each partition did.

    Raises:
        Exception: Spark's, if a task failed as often as it may (``spark.task.maxFailures``).
    """
    stats: list[PartitionStats] = seed_rdd(sc, spec).mapPartitionsWithIndex(_Foreach(spec, handler)).collect()
    return stats


def drain_to(sc: SparkContext, spec: ConsumerSpec, sink: Sink) -> list[PartitionStats]:
    """Consume in every partition: write to a sink, then finish.

    At least once; effectively once for readers who deduplicate on ``KEY_COLUMNS``.

    Args:
        sc: the context of a session.
        spec: what is consumed, and until when.
        sink: where to.

    Returns:
        What each partition did.
    """
    return foreach_partition(sc, spec, sink.write)


def map_partitions(
    spec: ConsumerSpec, fn: Callable[[Sequence[MessageRow]], Iterable[T]]
) -> Callable[[int, Iterable[object]], Iterator[T]]:
    """Return a function for ``mapPartitionsWithIndex`` that consumes and gives what ``fn`` returned.

    The messages of a chunk are finished when ``fn`` has returned, so what has to be kept is kept by ``fn``. Its
    results are held until the partition ends, and are as lasting as those of any RDD: where Spark computes a
    partition again it consumes again, and gets other messages.

    Args:
        spec: what is consumed, and until when.
        fn: called on the executors with each chunk.
    """
    return _Map(spec, fn)


@attrs.frozen
class _Foreach:
    spec: ConsumerSpec
    handler: Process

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[PartitionStats]:
        yield drain_partition(self.spec, _plan(self.spec, index, seed), self.handler)


@attrs.frozen
class _Map(Generic[T]):
    spec: ConsumerSpec
    fn: Callable[[Sequence[MessageRow]], Iterable[T]]

    def __call__(self, index: int, seed: Iterable[object]) -> Iterator[T]:
        results: list[T] = []
        drain_partition(self.spec, _plan(self.spec, index, seed), lambda rows: results.extend(self.fn(rows)))
        return iter(results)


def _plan(spec: ConsumerSpec, index: int, seed: Iterable[object]) -> PartitionPlan:
    """Read the input to its end, and find the plan of this partition."""
    for _ in seed:
        pass
    plans = plan_partitions(spec)
    if index >= len(plans):
        raise OptionError(
            f"this is partition {index}, and the spec has {len(plans)} of them: allowed is an RDD with as many "
            "partitions as the spec, such as seed_rdd(sc, spec)"
        )
    return plans[index]
