"""The query as a program of its own: its folder, the options of the source and Spark's settings, both as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark_chaos.stream import Job

if __name__ == "__main__":
    folder, options, settings = sys.argv[1:]
    builder = SparkSession.builder
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    Job(Path(folder), json.loads(options)).run(builder.getOrCreate())
