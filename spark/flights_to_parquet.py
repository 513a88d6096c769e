"""Flights from NSQ to Parquet, in a directory for each carrier: a consumer connection in every partition.

    spark-submit spark/flights_to_parquet.py --nsqd-tcp-address 127.0.0.1:4150 --output flights.parquet

A message is one flight as a line of JSON. Every row has the key of its message, so that a reader can drop duplicates:
`frame.dropDuplicates(["nsqdAddress", "topic", "id"])`. At the end it prints the figures of each carrier's files as
lines of JSON.
"""

from __future__ import annotations

import argparse
import io
import json

import pyarrow as pa
import pyarrow.json

from nsqkit.spark import KEY_COLUMNS, ConsumerSpec, ParquetSink, drain_to

TEXTS = ["carrier", "tailnum", "origin", "dest", "time_hour"]
NUMBERS = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"]
NUMBERS += ["arr_delay", "flight", "air_time", "distance", "hour", "minute"]
SCHEMA = pa.schema([(name, pa.string()) for name in TEXTS] + [(name, pa.int32()) for name in NUMBERS])


def flight_table(rows):
    """Return the flights of a chunk, with the keys of their messages."""
    lines = io.BytesIO(b"\n".join(row.body for row in rows))
    options = pa.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
    table = pa.json.read_json(lines, parse_options=options)
    for index, name in enumerate(KEY_COLUMNS):
        table = table.append_column(name, pa.array([row.key[index] for row in rows], pa.string()))
    return table


def figures(frame):
    """Return a row for each carrier: all rows, those with a delay, the sum of delays, and distinct rows."""
    from pyspark.sql import functions as f

    return frame.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.count("arr_delay").alias("delayed"),
        f.sum("arr_delay").alias("delay_sum"),
        f.countDistinct("time_hour", "flight").alias("distinct_flights"),
        f.countDistinct(*KEY_COLUMNS).alias("distinct_messages"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd-tcp-address", action="append", required=True, help="HOST:PORT; may be repeated")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--channel", default="spark")
    parser.add_argument("--output", required=True, help="a directory that all executors can write to")
    parser.add_argument("--partitions", type=int, help="tasks that consume; by default one for each nsqd")
    parser.add_argument("--max-in-flight", type=int, default=2500, help="a partition writes half of its share at once")
    parser.add_argument("--empty-for", type=float, default=2.0, help="seconds without messages that end a partition; 2")
    options = vars(parser.parse_args())
    sink = ParquetSink(options.pop("output"), to_table=flight_table, partition_by="carrier")
    addresses = options.pop("nsqd_tcp_address")
    spec = ConsumerSpec(topics=options.pop("topic"), nsqd_tcp_addresses=addresses, **options)

    from pyspark.sql import SparkSession

    with SparkSession.builder.appName("flights to parquet").getOrCreate() as spark:
        drain_to(spark.sparkContext, spec, sink)
        for row in figures(spark.read.parquet(sink.directory)).collect():
            print(json.dumps(row.asDict()))


if __name__ == "__main__":
    main()
