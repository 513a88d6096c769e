"""The program that measures Spark: one session, for tasks that it reads from stdin.

Each line of stdin is a task in JSON: the name of a function in ``TASKS``, and its arguments. The answer is one line of
JSON with its figures. A session takes seconds to start and its first queries are slow, so all tasks share one.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsqkit import BlockingProducer
from nsqkit.spark.partition_writer import write_partition
from nsqkit.spark.schema import DDL, MessageRow, RowNumbers, encode_payload, record_batches
from nsqkit.spark.testing.session import local_session
from nsqkit.spark.writer_options import WriterOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

CHANNEL: Final = "channel"
BODY_LENGTH: Final = 200
REPLAY_TASKS: Final = 2
REPLAY_IN_FLIGHT: Final = 5000
REPLAY_BATCH: Final = REPLAY_IN_FLIGHT // REPLAY_TASKS // 2
"""Rows of a slot, and so of an Arrow batch."""

SAME_BATCH: Final = "same_batch"

STREAM_SECONDS_MAX: Final = 120
SAMPLE_SECONDS: Final = 0.05


def stream(
    spark: SparkSession,
    *,
    addresses: Sequence[str],
    http_addresses: Sequence[str],
    topic: str,
    ack_mode: str,
    partitions: int,
    max_in_flight: int | None = None,
    rows_per_batch: int | None = None,
) -> dict[str, float]:
    """Read everything that is there; the time is that of the batches with rows."""
    options = {
        **_source(addresses, topic, ack_mode),
        "nsqd.http.addresses": ",".join(http_addresses),
        "partitions": partitions,
        **({"maxInFlight": max_in_flight} if max_in_flight else {}),
        **({"maxRecordsPerTrigger": rows_per_batch} if rows_per_batch else {}),
    }
    with _wal(options) as folder, _resident_memory() as peak:
        query = (
            spark.readStream.format("nsq")
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(STREAM_SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"the stream took more than {STREAM_SECONDS_MAX} seconds")
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    rows = sum(batch["numInputRows"] for batch in batches)
    seconds = sum(batch["batchDuration"] for batch in batches) / 1000
    return {"rows": rows, "per_second": rows / seconds, "worker_mb": peak() / 1e6}


def replay(spark: SparkSession, *, addresses: Sequence[str], topic: str, replays: int, rounds: int) -> dict[str, float]:
    """Read the rows of a WAL, which needs no broker, and as many rows of a source that has no work, in turns.

    One job reads them ``replays`` times, so that its fixed cost counts less.
    """
    options = {**_source(addresses, topic, "wal"), "partitions": REPLAY_TASKS, "maxInFlight": REPLAY_IN_FLIGHT}
    with _wal(options):
        frame = spark.read.format("nsq").options(**options).load()
        rows = frame.count()
        batch_count = -(-rows // REPLAY_TASKS // REPLAY_BATCH)
        spark.dataSource.register(_same_batch_source(batch_count))
        frames = {"replay": frame, "transport": spark.read.format(SAME_BATCH).load()}
        seconds = dict.fromkeys(frames, math.inf)
        for _ in range(rounds):
            for name, frame in frames.items():
                job = reduce(lambda left, right: left.union(right), [frame] * replays)
                seconds[name] = min(seconds[name], _seconds(job.write.format("noop").mode("overwrite").save))
    counts = {"replay": rows, "transport": batch_count * REPLAY_BATCH * REPLAY_TASKS}
    return {f"{name}_per_second": replays * count / seconds[name] for name, count in counts.items()}


def _same_batch_source(batch_count: int) -> type[DataSource]:
    """Return a source whose tasks yield one batch again and again: the cost of Spark's transport alone."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(number) for number in range(REPLAY_TASKS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            rows = [
                MessageRow("127.0.0.1:4150", "topic", f"{number:016x}", time.time_ns(), 1, os.urandom(BODY_LENGTH))
                for number in range(REPLAY_BATCH)
            ]
            (batch,) = record_batches(encode_payload(rows, CHANNEL), (), (), RowNumbers(0, partition.value))
            yield from itertools.repeat(batch, batch_count)

    class SameBatch(DataSource):
        @classmethod
        def name(cls) -> str:
            return SAME_BATCH

        def schema(self) -> str:
            return DDL

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return SameBatch


def write(spark: SparkSession, *, addresses: Sequence[str], topic: str, count: int) -> dict[str, float]:
    """Write a DataFrame of two partitions."""
    frame = _rows(spark, count)
    options: dict[str, Any] = {"nsqd.addresses": ",".join(addresses), "topic": topic, "mpubBatch": 1000}
    seconds = _seconds(lambda: frame.write.format("nsq").options(**options).mode("append").save())
    return {"per_second": count / seconds}


def publish(spark: SparkSession, *, addresses: Sequence[str], topic: str, count: int) -> dict[str, float]:
    """Write Arrow batches as one task does, without Spark."""
    import pyarrow as pa

    bodies = pa.array([os.urandom(BODY_LENGTH) for _ in range(min(count, 10_000))], pa.binary())
    batch = pa.RecordBatch.from_arrays([bodies], names=["body"])
    options = WriterOptions(topic=topic, nsqd_tcp_addresses=tuple(addresses), mpub_batch=1000)
    batches = [batch] * (count // len(bodies))
    seconds = _seconds(lambda: write_partition(options, options.nsqd_tcp_addresses, 0, batches))
    return {"per_second": len(batches) * len(bodies) / seconds}


def trickle(
    spark: SparkSession,
    *,
    addresses: Sequence[str],
    http_addresses: Sequence[str],
    topic: str,
    per_second: int,
    count: int,
) -> dict[str, float]:
    """Measure the time from a publish to the end of ``foreachBatch``'s read of the row."""
    latencies: list[float] = []
    arrived = threading.Event()

    def sink(frame: DataFrame, batch: int) -> None:
        bodies = [row.body for row in frame.select("body").collect()]
        now_ns = time.time_ns()
        latencies.extend((now_ns - int(body)) / 1e6 for body in bodies)
        if len(latencies) >= count:
            arrived.set()

    options = {**_source(addresses, topic, "wal"), "nsqd.http.addresses": ",".join(http_addresses), "partitions": 2}
    with _wal(options) as folder:
        query = (
            spark.readStream.format("nsq")
            .options(**options)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
        try:
            with BlockingProducer(*addresses) as producer:
                begin = time.perf_counter()
                for number in range(count):
                    time.sleep(max(0.0, begin + number / per_second - time.perf_counter()))
                    producer.publish(topic, b"%d" % time.time_ns())
            if not arrived.wait(STREAM_SECONDS_MAX):
                raise TimeoutError(f"{len(latencies)} of {count} messages have arrived")
        finally:
            query.stop()
    steady = latencies[len(latencies) // 10 :]  # the query starts during the first ones
    percentiles = statistics.quantiles(steady, n=100)
    return {"p50_ms": percentiles[49], "p99_ms": percentiles[98]}


TASKS: Final[Mapping[str, Callable[..., dict[str, float]]]] = {
    function.__name__: function for function in (stream, replay, write, publish, trickle)
}


def _source(addresses: Sequence[str], topic: str, ack_mode: str) -> dict[str, Any]:
    return {"nsqd.addresses": ",".join(addresses), "subscribe": topic, "channel": CHANNEL, "ackMode": ack_mode}


@contextmanager
def _wal(options: dict[str, Any]) -> Iterator[Path]:
    """Create a folder, and set the option for the WAL where the mode has one."""
    with tempfile.TemporaryDirectory(prefix="nsqkit-bench-") as folder:
        if options["ackMode"] == "wal":
            options["walLocation"] = f"{folder}/wal"
        yield Path(folder)


def _rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(f"cast(lpad(id, {BODY_LENGTH}, 'x') as binary) as body")


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@contextmanager
def _resident_memory() -> Iterator[Callable[[], int]]:
    """Sample the memory of each Python worker of this session; the result is the most that one of them had."""
    done = threading.Event()
    peak = 0

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max([peak, *map(_rss, _workers())])

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield lambda: peak
    finally:
        done.set()
        sampler.join()


def _workers() -> list[Path]:
    """Return the descendants of this process that are Python workers of Spark."""
    parents: dict[str, str] = {}
    workers: list[Path] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name may have spaces and is in parentheses.
            parents[folder.name] = folder.joinpath("stat").read_text("utf-8").rpartition(")")[2].split()[1]
            if b"pyspark.daemon" in folder.joinpath("cmdline").read_bytes():
                workers.append(folder)
        except OSError:  # it has ended
            continue
    return [worker for worker in workers if _descends(worker.name, parents)]


def _descends(process_id: str, parents: Mapping[str, str]) -> bool:
    own = str(os.getpid())
    while process_id in parents and process_id != own:
        process_id = parents[process_id]
    return process_id == own


def _rss(folder: Path) -> int:
    try:
        return int(folder.joinpath("statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> None:
    """Start a session with the master in the first argument and settings in the second one, and do the tasks."""
    with local_session(sys.argv[1], json.loads(sys.argv[2])) as spark:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            print(json.dumps(TASKS[name](spark, **arguments)), flush=True)


if __name__ == "__main__":
    main()
