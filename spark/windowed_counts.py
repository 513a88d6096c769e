"""Count the messages of each window of time, by a field of their JSON or by topic.

    spark-submit spark/windowed_counts.py --output /shared/lake/counts --by '$.carrier' --window '1 minute' \
        --late '10 minutes' --source lookupd.addresses=127.0.0.1:4161 --source subscribe=flights \
        --source channel=counts --source walLocation=/shared/wal/counts

The time of a message is that of its publication. A window is written once, when the newest message is later than the
window's end by ``--late``. An nsqd that is killed may deliver messages again that were finished; the keys of the
messages in that time are kept, so none is counted twice.
"""

from __future__ import annotations

from command import add_trigger, main, make_parser, trigger


def parser():
    """Return the parser of the command line."""
    parser = make_parser(__doc__, "source")
    parser.add_argument("--output", required=True, metavar="DIR", help="a directory that all executors can write to")
    parser.add_argument("--by", metavar="PATH", help="the field to count by, as a path in the JSON; else the topic")
    parser.add_argument("--window", default="1 minute", metavar="INTERVAL", help="the length of a window; %(default)s")
    parser.add_argument(
        "--late", default="10 minutes", metavar="INTERVAL", help="how late messages may be; %(default)s"
    )
    add_trigger(parser)
    return parser


def run(spark, arguments):
    """Run the query to its end."""
    from pyspark.sql import functions as f

    rows = spark.readStream.format("nsq").options(**dict(arguments.source)).load()
    once = rows.withWatermark("timestamp", arguments.late).dropDuplicatesWithinWatermark(["nsqdAddress", "topic", "id"])
    field = f.get_json_object(rows.body.cast("string"), arguments.by) if arguments.by else rows.topic
    counts = once.groupBy(f.window("timestamp", arguments.window), field.alias("field")).count()
    flat = counts.select("window.start", "window.end", "field", "count")
    query = flat.writeStream.format("parquet").option("path", arguments.output)
    query = query.option("checkpointLocation", f"{arguments.output}/_checkpoint").outputMode("append")
    query.trigger(**trigger(arguments.every)).start().awaitTermination()


if __name__ == "__main__":
    main(parser(), run)
