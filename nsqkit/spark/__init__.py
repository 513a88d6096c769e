"""NSQ in Spark: a consumer connection in every partition.

Importing this package needs neither pyspark nor Java: executors, tests and programs without Spark use it as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.spark.batch_plan import PartitionShare, PlannedConnection, SourceNode, named_nodes, plan_spec
from nsqkit.spark.bounded_run import RunStats
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.discovery import Backlog
from nsqkit.spark.drainer import (
    FINISH,
    PartitionStats,
    Requeue,
    drain_to_handler,
    drain_to_handler_async,
    drain_to_slots,
    receive_rows,
)
from nsqkit.spark.message_handler import per_message
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.parquet_file import compact
from nsqkit.spark.rdd import drain_to, foreach_partition, map_partitions, nsq_rdd, seed_rdd
from nsqkit.spark.schema import KEY_COLUMNS, MessageRow
from nsqkit.spark.sink import ParquetSink, Sink, message_table
from nsqkit.spark.stored_reads import remove_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FINISH",
    "KEY_COLUMNS",
    "Backlog",
    "ConsumerSpec",
    "MessageRow",
    "ParquetSink",
    "PartitionShare",
    "PartitionStats",
    "PlannedConnection",
    "Requeue",
    "RunStats",
    "Sink",
    "SourceNode",
    "StopReason",
    "compact",
    "drain_to",
    "drain_to_handler",
    "drain_to_handler_async",
    "drain_to_slots",
    "foreach_partition",
    "map_partitions",
    "message_table",
    "named_nodes",
    "nsq_rdd",
    "per_message",
    "plan_spec",
    "receive_rows",
    "register",
    "remove_reads",
    "seed_rdd",
]


def register(spark: SparkSession) -> None:
    """Make ``format("nsq")`` known to a session that does not find it by itself, such as one of Spark Connect.

    Args:
        spark: the session.

    Raises:
        ImportError: pyspark is older than 4.2, or pyarrow is missing.
    """
    from nsqkit.spark.source import NsqSource

    spark.dataSource.register(NsqSource)
