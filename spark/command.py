"""The command lines of the jobs: options of the source and of the sink as KEY=VALUE, and the trigger."""

from __future__ import annotations

import argparse


def make_parser(description, *roles):
    """Return a parser with an argument ``--role KEY=VALUE`` for each role, which may be repeated."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in roles:
        text = f"an option of the {role}, as docs/spark.md lists them; may be repeated"
        parser.add_argument(f"--{role}", action="append", type=_option, required=True, metavar="KEY=VALUE", help=text)
    return parser


def add_trigger(parser):
    """Add ``--every``; ``trigger`` takes its value."""
    parser.add_argument("--every", metavar="SECONDS", type=int, help="run on, with a batch so often; else one run")


def trigger(every):
    """Return the arguments of a query's trigger: one run over the messages that are there, or a batch so often."""
    return {"availableNow": True} if every is None else {"processingTime": f"{every} seconds"}


def main(parser, run):
    """Parse the command line, and call ``run`` with a session and the arguments."""
    arguments = parser.parse_args()

    from pyspark.sql import SparkSession

    with SparkSession.builder.appName(parser.prog).getOrCreate() as spark:
        run(spark, arguments)


def _option(text):
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} has no name before a =; allowed is KEY=VALUE")
    return key, value
