"""The query of the chaos tests: from two brokers to Parquet, one folder for each batch, which a replay overwrites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds

from tests.spark_chaos.fault_points import hit

TOPIC, CHANNEL = "orders", "spark"

QUERY_SECONDS = 120
"""The limit of one run of the query."""


@attrs.frozen
class Job:
    """A query, and the folders that it writes.

    Attributes:
        folder: the parent of its folders: the WAL, the checkpoint and the Parquet files.
        options: of the source, besides those that all queries have.
        counts_first: it runs two actions on each batch.
        before_sink: called before each batch is written.
    """

    folder: Path
    options: Mapping[str, object]
    counts_first: bool = False
    before_sink: Callable[[], object] = int

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def run(self, spark: Any) -> None:
        """Process everything that is available."""
        options = {
            "subscribe": TOPIC,
            "channel": CHANNEL,
            "walLocation": self.folder / "wal",
            "partitions": 2,
            "maxInFlight": 2000,
            "maxRecordsPerTrigger": 7000,  # three batches
            "msgTimeoutMs": 3000,
            **self.options,
        }
        reader = spark.readStream.format("nsq")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(QUERY_SECONDS), f"the query has not ended: {query.status}"
        finally:
            query.stop()

    def write(self, batch: Any, number: int) -> None:
        """Write a batch; a replay of the same batch overwrites it."""
        if self.counts_first:
            batch.count()
        self.before_sink()
        rows = batch.mapInArrow(pass_through, batch.schema)
        rows.write.mode("overwrite").parquet(str(self.lake / f"batch={number}"))
        hit("sink:after")


def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows, in a worker that is not the one of the source."""
    for batch in batches:
        yield batch
        hit("downstream:after")


@attrs.frozen
class Outcome:
    """The messages that have not arrived, and the rows that are there too often, by the bodies, which all differ."""

    lost_count: int
    duplicate_count: int

    def __str__(self) -> str:
        return f"lost {self.lost_count} duplicated {self.duplicate_count}"


def count(lake: Path, published: set[bytes]) -> Outcome:
    """Compare the rows of all batches with the bodies that were published."""
    rows = ds.dataset(lake, format="parquet", partitioning="hive").to_table(columns=["body"])
    arrived = Counter(rows["body"].to_pylist())
    assert not arrived.keys() - published, "rows that were not published"
    return Outcome(len(published - arrived.keys()), arrived.total() - len(arrived))
