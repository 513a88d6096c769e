"""Publish dead letters to the topics that they came from, after the cause of their failure is mended.

    spark-submit spark/replay_dead_letters.py --checkpoint /shared/checkpoints/replay \
        --source lookupd.addresses=127.0.0.1:4161 --source subscribe=orders_dead --source channel=replay \
        --source walLocation=/shared/wal/replay --sink lookupd.addresses=127.0.0.1:4161 --sink topic=orders

A dead letter is the JSON object of ``GivenUp.encode``, with the topic and the body. A message that is none is
published unchanged to the sink's topic. Each message is published at least once, to all channels of its topic.
"""

from __future__ import annotations

from command import add_trigger, main, make_parser, trigger


def parser():
    """Return the parser of the command line."""
    parser = make_parser(__doc__, "source", "sink")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="a directory of the query's own")
    add_trigger(parser)
    return parser


def run(spark, arguments):
    """Run the query to its end."""
    from pyspark.sql import functions as f

    rows = spark.readStream.format("nsq").options(**dict(arguments.source)).load()
    letter = f.from_json(rows.body.cast("string"), "topic STRING, body STRING, given_up_ns BIGINT")
    body = f.when(letter.given_up_ns.isNotNull(), f.try_to_binary(letter.body, f.lit("base64")))
    topic = f.when(body.isNotNull(), letter.topic)
    messages = rows.select(f.coalesce(body, rows.body).alias("body"), topic.alias("topic"))
    query = messages.writeStream.format("nsq")
    query = query.options(**dict(arguments.sink)).option("checkpointLocation", arguments.checkpoint)
    query.trigger(**trigger(arguments.every)).start().awaitTermination()


if __name__ == "__main__":
    main(parser(), run)
