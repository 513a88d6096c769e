"""Runs of the jobs under spark/, for tests with any master: messages, and the results of each job with them.

A run gets a function that runs a job with arguments to its end, two nsqds, and a folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nsqkit import BlockingConsumer
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.testing import NsqdServer

PROGRAMS = Path(__file__).resolve().parents[2] / "spark"
ROWS = 500
CHANNEL = "job"

RunJob: TypeAlias = Callable[..., object]
Nsqds: TypeAlias = Sequence[NsqdServer]


def topic_to_parquet(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Run the job twice, with more messages before the second run."""
    flights = make_flights()
    bodies, lake = list(flights.messages()), folder / "lake"
    nsqds[0].publish("flights", *bodies[: ROWS // 2])
    nsqds[1].publish("flights", *bodies[ROWS // 2 :])
    arguments = [*source_of(nsqds, "flights", folder), "--output", lake, "--partition-by", "carrier"]
    arguments += ["--schema", "carrier STRING, arr_delay INT"]
    run_job("topic_to_parquet", *arguments)
    rows = read(lake)
    counts = [row["carrier"] for row in rows]
    assert {carrier: counts.count(carrier) for carrier in counts} == {
        carrier: figures.flights for carrier, figures in flights.figures.items()
    }
    delay_sum = sum(figures.delay_sum for figures in flights.figures.values())
    assert sum(row["value"]["arr_delay"] or 0 for row in rows) == delay_sum
    nsqds[0].publish("flights", b'{"carrier": "ZZ"}', b"no JSON")
    run_job("topic_to_parquet", *arguments)
    assert sorted(row["body"] for row in read(lake)) == sorted([*bodies, b'{"carrier": "ZZ"}', b"no JSON"])
    assert [unfinished(nsqd, "flights", CHANNEL) for nsqd in nsqds] == [0, 0]


def batch_that_runs_again(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Run the last batch again, as after a kill between the writing of its files and that of the checkpoint."""
    lake = folder / "lake"
    nsqds[0].publish("orders", *(b"%d" % number for number in range(ROWS)))
    arguments = [*source_of(nsqds[:1], "orders", folder), "--output", lake]
    run_job("topic_to_parquet", *arguments)
    before = sorted(row["id"] for row in read(lake))
    shutil.rmtree(lake / "_checkpoint" / "commits")
    run_job("topic_to_parquet", *arguments)
    assert len(before) == ROWS
    assert sorted(row["id"] for row in read(lake)) == before


def parquet_to_topic(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Publish whole rows, and one column."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"order": [1, 2], "text": ["a", "b"]}), folder / "orders.parquet")
    arguments = ["--input", folder / "orders.parquet"]
    run_job("parquet_to_topic", *arguments, *sink_of(nsqds, "rows"))
    run_job("parquet_to_topic", *arguments, *sink_of(nsqds, "texts"), "--body", "text")
    assert received(nsqds, "rows", 2) == [b'{"order":1,"text":"a"}', b'{"order":2,"text":"b"}']
    assert received(nsqds, "texts", 2) == [b"a", b"b"]


def windowed_counts(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Count in two runs: the messages of the second end the windows of the first."""
    arguments = [*source_of(nsqds, "flights", folder), "--output", folder / "counts", "--by", "$.carrier"]
    arguments += ["--window", "10 milliseconds", "--late", "0 seconds"]
    nsqds[0].publish("flights", b'{"carrier": "UA"}', b'{"carrier": "UA"}', b'{"carrier": "AA"}')
    run_job("windowed_counts", *arguments)
    nsqds[1].publish("flights", b'{"carrier": "ZZ"}')
    run_job("windowed_counts", *arguments)
    counts: dict[str, int] = {}
    for row in read(folder / "counts"):
        counts[row["field"]] = counts.get(row["field"], 0) + row["count"]
    assert counts == {"UA": 2, "AA": 1}


def enrich_republish(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Enrich a message with a match, one without, and one that is no JSON."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"carrier": ["UA"], "name": ["United"]}), folder / "carriers.parquet")
    nsqds[0].publish("flights", b'{"carrier": "UA", "flight": 1}', b'{"carrier": "XX", "flight": 2}', b"no JSON")
    arguments = [*source_of(nsqds, "flights", folder), *sink_of(nsqds, "named"), "--checkpoint", folder / "checkpoint"]
    arguments += ["--table", folder / "carriers.parquet", "--on", "carrier"]
    run_job("enrich_republish", *arguments, "--schema", "carrier STRING, flight INT")
    no_json, *others = received(nsqds, "named", 3)
    assert no_json == b"no JSON"
    assert [json.loads(body) for body in others] == [
        {"carrier": "UA", "flight": 1, "name": "United"},
        {"carrier": "XX", "flight": 2},
    ]


def replay_dead_letters(run_job: RunJob, nsqds: Nsqds, folder: Path) -> None:
    """Replay an envelope, and two bodies that are none."""
    letter = GivenUp(
        topic="orders",
        channel="billing",
        nsqd_address="127.0.0.1:4150",
        id="0" * 16,
        attempts=5,
        timestamp_ns=1,
        given_up_ns=2,
        body=b"\x00 an order",
    )
    others = [b"no envelope", b'{"topic": "other", "body": "no envelope"}']
    nsqds[0].publish("dead", letter.encode(), *others)
    arguments = [*source_of(nsqds, "dead", folder), *sink_of(nsqds, "unknown")]
    run_job("replay_dead_letters", *arguments, "--checkpoint", folder / "checkpoint")
    assert received(nsqds, "orders", 1) == [b"\x00 an order"]
    assert received(nsqds, "unknown", 2) == others


RUNS: dict[str, Callable[[RunJob, Nsqds, Path], None]] = {
    run.__name__: run
    for run in (
        topic_to_parquet,
        batch_that_runs_again,
        parquet_to_topic,
        windowed_counts,
        enrich_republish,
        replay_dead_letters,
    )
}


def make_flights() -> Any:
    """Return the source of the demo, whose figures are complete when its messages are exhausted."""
    sys.path.insert(0, str(PROGRAMS))
    try:
        from flights import Flights
    finally:
        sys.path.remove(str(PROGRAMS))
    return Flights(ROWS)


def source_of(nsqds: Nsqds, topic: str, folder: Path) -> Iterator[object]:
    """Yield the arguments of a job that reads from a topic."""
    options = {
        "nsqd.addresses": ",".join(nsqd.tcp_address for nsqd in nsqds),
        "nsqd.http.addresses": ",".join(nsqd.http_address for nsqd in nsqds),
        "subscribe": topic,
        "channel": CHANNEL,
        "walLocation": folder / "wal",
    }
    for key, value in options.items():
        yield from ("--source", f"{key}={value}")


def sink_of(nsqds: Nsqds, topic: str) -> list[object]:
    """Return the arguments of a job that writes to a topic."""
    return ["--sink", f"nsqd.addresses={','.join(nsqd.tcp_address for nsqd in nsqds)}", "--sink", f"topic={topic}"]


def received(nsqds: Nsqds, topic: str, count: int) -> list[bytes]:
    """Return the bodies of all messages of a topic, sorted; assert their number."""
    bodies = []
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    with BlockingConsumer(topic, "test", nsqd_tcp_addresses=addresses, max_in_flight=count + 1) as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=30)
            assert message is not None
            bodies.append(message.body)
            message.finish()
    assert sum(unfinished(nsqd, topic, "test") for nsqd in nsqds) == 0
    return sorted(bodies)


def unfinished(nsqd: NsqdServer, topic: str, channel: str) -> int:
    """Return the messages of a channel that wait or are in flight."""
    if topic not in nsqd.topics:
        return 0
    found = nsqd.topic(topic).channel(channel)
    return found.depth + found.in_flight


def read(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of Parquet files."""
    from pyarrow import dataset

    rows: list[dict[str, Any]] = dataset.dataset(directory, partitioning="hive").to_table().to_pylist()
    return rows
