"""Write a topic to Parquet files, each batch into a directory of its own.

    spark-submit spark/topic_to_parquet.py --output /shared/lake/orders --source lookupd.addresses=127.0.0.1:4161 \
        --source subscribe=orders --source channel=lake --source walLocation=/shared/wal/orders

The sink is idempotent: a batch that Spark runs again overwrites its directory, so no row occurs twice. The checkpoint
is beside the batches, because their numbers belong to it: a new checkpoint needs a new output.
"""

from __future__ import annotations

from command import add_trigger, main, make_parser, trigger


def parser():
    """Return the parser of the command line."""
    parser = make_parser(__doc__, "source")
    parser.add_argument("--output", required=True, metavar="DIR", help="a directory that all executors can write to")
    parser.add_argument("--schema", metavar="DDL", help="parse bodies as JSON of these columns, into a column value")
    parser.add_argument("--partition-by", metavar="COLUMN", help="a directory for each value of this JSON column")
    add_trigger(parser)
    return parser


def run(spark, arguments):
    """Run the query to its end."""
    from pyspark.sql import functions as f

    rows = spark.readStream.format("nsq").options(**dict(arguments.source)).load()
    if arguments.schema:
        rows = rows.withColumn("value", f.from_json(rows.body.cast("string"), arguments.schema))
    if arguments.partition_by:
        rows = rows.withColumn(arguments.partition_by, f.col(f"value.{arguments.partition_by}"))

    def write(batch, number):
        writer = batch.write.mode("overwrite")
        if arguments.partition_by:
            writer = writer.partitionBy(arguments.partition_by)
        writer.parquet(f"{arguments.output}/batch={number}")

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{arguments.output}/_checkpoint")
    query.trigger(**trigger(arguments.every)).start().awaitTermination()


if __name__ == "__main__":
    main(parser(), run)
