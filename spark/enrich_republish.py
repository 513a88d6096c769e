"""Add the columns of a table to the JSON of each message, and publish the result to another topic.

    spark-submit spark/enrich_republish.py --checkpoint /shared/checkpoints/enrich --table /shared/lake/carriers \
        --on carrier --schema 'carrier STRING, flight INT' --source lookupd.addresses=127.0.0.1:4161 \
        --source subscribe=flights --source channel=enrich --source walLocation=/shared/wal/enrich \
        --sink lookupd.addresses=127.0.0.1:4161 --sink topic=flights_named

A message is published at least once. One without a match is published without the columns of the table, and a body that
is not JSON of the schema is published as it is.
"""

from __future__ import annotations

from command import add_trigger, main, make_parser, trigger

CORRUPT = "_corrupt_record"


def parser():
    """Return the parser of the command line."""
    parser = make_parser(__doc__, "source", "sink")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="a directory of the query's own")
    parser.add_argument("--table", required=True, metavar="DIR", help="Parquet files, small enough for each executor")
    parser.add_argument("--on", required=True, metavar="COLUMN", help="the column that messages and table share")
    parser.add_argument("--schema", required=True, metavar="DDL", help="the columns of the messages' JSON")
    add_trigger(parser)
    return parser


def run(spark, arguments):
    """Run the query to its end."""
    from pyspark.sql import functions as f

    rows = spark.readStream.format("nsq").options(**dict(arguments.source)).load()
    parse = {"columnNameOfCorruptRecord": CORRUPT}
    value = f.from_json(rows.body.cast("string"), f"{arguments.schema}, {CORRUPT} STRING", parse)
    messages = rows.select(value.alias("value")).select("value.*")
    joined = messages.join(f.broadcast(spark.read.parquet(arguments.table)), arguments.on, "left")
    enriched = f.to_json(f.struct(*(name for name in joined.columns if name != CORRUPT)))
    body = joined.select(f.coalesce(CORRUPT, enriched).alias("body"))
    query = body.writeStream.format("nsq").options(**dict(arguments.sink))
    query = query.option("checkpointLocation", arguments.checkpoint)
    query.trigger(**trigger(arguments.every)).start().awaitTermination()


if __name__ == "__main__":
    main(parser(), run)
