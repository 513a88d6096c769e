"""Publish the rows of Parquet files to a topic.

    spark-submit spark/parquet_to_topic.py --input /shared/lake/orders --body body \
        --sink nsqd.addresses=127.0.0.1:4150 --sink topic=orders

A row is published at least once: a task that fails and runs again publishes its rows again.
"""

from __future__ import annotations

from command import main, make_parser


def parser():
    """Return the parser of the command line."""
    parser = make_parser(__doc__, "sink")
    parser.add_argument("--input", required=True, metavar="DIR", help="a directory that all executors can read")
    parser.add_argument("--body", metavar="COLUMN", help="the column with the bodies; else each row as JSON")
    return parser


def run(spark, arguments):
    """Publish all rows."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(arguments.input)
    body = f.col(arguments.body) if arguments.body else f.to_json(f.struct("*"))
    sink = rows.select(body.alias("body")).write.format("nsq").options(**dict(arguments.sink))
    sink.mode("append").save()


if __name__ == "__main__":
    main(parser(), run)
