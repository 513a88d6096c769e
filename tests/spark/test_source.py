"""``format("nsq")`` in a real Spark session, on brokers with real sockets. Needs Java: `tox -e spark`."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from nsqkit.errors import OptionError
from nsqkit.spark import register
from nsqkit.spark.schema import DDL, arrow_schema
from nsqkit.spark.source import NsqReader, NsqSource
from nsqkit.spark.source_options import batch_options

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

COUNT = 400
"""Messages on each of two brokers."""

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def brokers(make_broker: Callable[..., Broker]) -> list[Broker]:
    return [make_broker(http_address="127.0.0.1:0") for _ in range(2)]


def publish(brokers: list[Broker], prefix: str, count: int = COUNT) -> list[bytes]:
    """Publish messages on each broker; return all bodies, sorted."""
    for index, broker in enumerate(brokers):
        broker.publish("t", [f"{prefix}-{index}-{n}".encode() for n in range(count)])
    return sorted(f"{prefix}-{index}-{n}".encode() for index in range(len(brokers)) for n in range(count))


@pytest.fixture
def options(brokers: list[Broker], tmp_path: Path) -> dict[str, str]:
    return {
        "nsqd.addresses": ",".join(broker.address for broker in brokers),
        "nsqd.http.addresses": ",".join(broker.nsqd.http_address for broker in brokers),
        "subscribe": "t",
        "channel": "c",
        "walLocation": str(tmp_path / "wal"),
        "partitions": "3",
    }


@pytest.fixture
def spark(spark_session: Any) -> Any:
    register(spark_session)
    return spark_session


def load(spark: Any, options: dict[str, str], **more: str) -> Any:
    return spark.read.format("nsq").options(**{**options, **more}).load()


def bodies(frame: Any) -> list[bytes]:
    return sorted(bytes(row.body) for row in frame.select("body").collect())


class Sink:
    """Keeps the rows of each batch; a batch that is repeated replaces its rows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(str(self.directory / f"batch={batch}"))

    def bodies(self, spark: Any) -> list[bytes]:
        return bodies(spark.read.parquet(str(self.directory)))


@pytest.fixture
def run(spark: Any, options: dict[str, str], tmp_path: Path) -> Any:
    """Run a query with availableNow to its end; return its progress."""

    def run(write: Any, checkpoint: str = "checkpoint", frame: Callable[[Any], Any] = lambda s: s, **more: str) -> Any:
        stream = spark.readStream.format("nsq").options(**{**options, **more}).load()
        query = (
            frame(stream)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query.recentProgress

    return run


def schema_of(spark: Any) -> StructType:
    schema: StructType = spark.createDataFrame([], DDL).schema
    return schema


def left(brokers: list[Broker]) -> list[int]:
    """Return the messages of each broker that are not finished."""
    return [broker.depth("t", "c") for broker in brokers]


def test_the_schema_is_the_one_that_spark_expects(spark: Any):
    assert to_arrow_schema(schema_of(spark), timezone="UTC") == arrow_schema()


def test_each_action_of_a_batch_read_has_the_same_rows(spark: Any, options: dict[str, str], brokers: list[Broker]):
    expected = publish(brokers, "one")
    frame = load(spark, options)
    assert frame.count() == len(expected)
    assert left(brokers) == [0, 0]
    publish(brokers, "two")
    assert bodies(frame) == expected
    assert frame.limit(3).count() == 3
    assert frame.join(frame.select("id", "nsqdAddress"), ["id", "nsqdAddress"]).count() == len(expected)
    assert len({row.batchSeq for row in frame.select("batchSeq").collect()}) == len(expected)
    assert left(brokers) == [COUNT, COUNT]


def test_a_batch_read_that_a_job_uses_twice_has_all_rows(spark: Any, options: dict[str, str], brokers: list[Broker]):
    expected = publish(brokers, "one", 20_000)
    frame = load(spark, options, partitions="1")
    assert bodies(frame.union(frame)) == sorted(2 * expected)
    assert left(brokers) == [0, 0]


def test_a_batch_read_ends_at_a_count(spark: Any, options: dict[str, str], brokers: list[Broker]):
    publish(brokers, "one")
    frame = load(spark, {**options, "partitions": "2"}, until="count", maxRecords="100", deadlineMs="20000")
    assert frame.count() == 100
    assert sum(left(brokers)) == 2 * COUNT - 100


def test_columns_that_are_not_read_change_nothing(spark: Any, options: dict[str, str], brokers: list[Broker]):
    publish(brokers, "one")
    assert load(spark, options).select("attempts").distinct().collect() == [(1,)]
    assert left(brokers) == [0, 0]


def test_a_session_with_timestamps_without_a_zone_reads_instants(
    spark: Any, options: dict[str, str], brokers: list[Broker], request: pytest.FixtureRequest
):
    publish(brokers, "one")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timestampType"))
    frame = load(spark, options)
    assert frame.schema["timestamp"].dataType == TimestampType()
    assert frame.select("timestamp").count() == 2 * COUNT


def test_available_now_reads_everything_once(run: Any, spark: Any, brokers: list[Broker], tmp_path: Path):
    expected = publish(brokers, "one")
    sink = Sink(tmp_path / "lake")
    progress = run(sink, maxRecordsPerTrigger="300")
    assert sink.bodies(spark) == expected
    assert [broker.in_flight("t", "c") for broker in brokers] == [0, 0]
    assert left(brokers) == [0, 0]
    assert len([entry for entry in progress if entry.numInputRows]) == 3
    # The last batch is finished, too, although Spark has not committed it to the source.
    assert sum(entry.numInputRows for entry in run(sink)) == 0
    expected = sorted(expected + publish(brokers, "two", 10))
    run(sink)
    assert sink.bodies(spark) == expected


def test_progress_has_the_depths(run: Any, brokers: list[Broker], tmp_path: Path):
    run(Sink(tmp_path / "lake"))  # creates the channel
    publish(brokers, "one")
    entry = run(Sink(tmp_path / "lake"))[0]
    latest = json.loads(entry.sources[0].latestOffset)
    assert latest["depth"] == 2 * COUNT
    assert json.loads(entry.sources[0].endOffset) == {"wal": latest["wal"], "n": latest["n"] + 1}


@pytest.mark.parametrize("persist", [False, True])
def test_two_actions_and_a_self_join_read_each_message_once(run: Any, brokers: list[Broker], persist: bool):
    publish(brokers, "one")
    counts: Counter[str] = Counter()

    def write(frame: Any, batch: int) -> None:
        rows = frame.persist() if persist else frame
        counts["rows"] += rows.count()
        counts["again"] += rows.select("body").distinct().count()
        counts["joined"] += rows.join(rows.select("batchSeq"), "batchSeq").count()

    run(write)
    assert counts == {"rows": 2 * COUNT, "again": 2 * COUNT, "joined": 2 * COUNT}
    assert [broker.channel("t", "c").message_count for broker in brokers] == [COUNT, COUNT]


def test_a_union_of_a_stream_with_itself_has_each_row_twice(run: Any, brokers: list[Broker]):
    publish(brokers, "one")
    found: Counter[bytes] = Counter()

    def write(frame: Any, batch: int) -> None:
        found.update(bodies(frame))

    run(write, frame=lambda stream: stream.union(stream))
    assert set(found.values()) == {2}
    assert len(found) == 2 * COUNT
    assert [broker.channel("t", "c").message_count for broker in brokers] == [COUNT, COUNT]


def test_a_failed_batch_is_replayed_with_other_partitions(run: Any, spark: Any, brokers: list[Broker], tmp_path: Path):
    expected = publish(brokers, "one")

    def fail(frame: Any, batch: int) -> None:
        frame.count()
        raise RuntimeError("after the rows were read")

    with pytest.raises(Exception, match="after the rows were read"):
        run(fail, partitions="4")
    assert left(brokers) == [0, 0]
    sink = Sink(tmp_path / "lake")
    run(sink, partitions="1")
    assert sink.bodies(spark) == expected


def test_a_lost_checkpoint_loses_no_rows(run: Any, spark: Any, brokers: list[Broker], tmp_path: Path):
    expected = publish(brokers, "one")
    run(lambda frame, batch: frame.count())
    with pytest.raises(Exception, match="but the query has no checkpoint: nsqd has dropped their messages"):
        run(Sink(tmp_path / "lake"), checkpoint="new")
    sink = Sink(tmp_path / "lake")
    run(sink, checkpoint="new", onOrphanedWal="adopt")
    assert sink.bodies(spark) == expected


@pytest.mark.parametrize("mode", ["commit", "receive"])
def test_other_modes_need_no_location(
    run: Any, spark: Any, options: dict[str, str], brokers: list[Broker], tmp_path: Path, mode: str
):
    del options["walLocation"]
    expected = publish(brokers, "one")
    sink = Sink(tmp_path / "lake")
    run(sink, ackMode=mode, maxRecordsPerTrigger="300")
    assert sink.bodies(spark) == expected


def start(spark: Any, options: dict[str, str], sink: Sink, checkpoint: Path) -> Any:
    """Start a query that runs until it is stopped."""
    stream = spark.readStream.format("nsq").options(**options).load()
    return stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def wait_for_rows(query: Any, count: int) -> None:
    """Return when the batches of a query have had ``count`` rows."""
    while sum(entry.numInputRows for entry in query.recentProgress) < count:
        assert query.isActive, query.exception()


def test_a_query_that_is_stopped_continues(spark: Any, options: dict[str, str], brokers: list[Broker], tmp_path: Path):
    expected = publish(brokers, "one")
    sink = Sink(tmp_path / "lake")
    for prefix in ("two", "three"):
        query = start(spark, options, sink, tmp_path / "checkpoint")
        wait_for_rows(query, 2 * COUNT)
        # Spark does not call stop() of the reader, nor commit() for the last batch.
        query.stop()
        assert left(brokers) == [0, 0]
        expected += publish(brokers, prefix)
    query = start(spark, options, sink, tmp_path / "checkpoint")
    wait_for_rows(query, 2 * COUNT)
    query.stop()
    assert sink.bodies(spark) == sorted(expected)


def test_a_stopped_query_requeues_the_messages_that_its_driver_holds(
    spark: Any, options: dict[str, str], brokers: list[Broker], tmp_path: Path
):
    del options["walLocation"]
    publish(brokers, "one")
    query = start(
        spark,
        {**options, "ackMode": "commit", "msgTimeoutMs": "600000"},
        Sink(tmp_path / "lake"),
        tmp_path / "checkpoint",
    )
    wait_for_rows(query, 2 * COUNT)
    publish(brokers, "two")
    query.stop()
    # Otherwise they would be in flight for ten minutes.
    while sum(broker.in_flight("t", "c") for broker in brokers):
        pass


HOLD_A_BATCH = """
import json, signal, sys
from nsqkit.spark.source import NsqStreamReader
from nsqkit.spark.source_options import stream_options

reader = NsqStreamReader(stream_options(json.loads(sys.argv[1])))
start = reader.initialOffset()
while reader.latestOffset(start, None) == start:
    pass
"""

TWO_SIGNALS = """
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    signal.raise_signal(signal.SIGTERM)
    reader.stop()
"""

A_SIGNAL_BEFORE_STOP = """
try:
    raise EOFError
finally:
    signal.raise_signal(signal.SIGTERM)
    reader.stop()
"""


@pytest.mark.parametrize("end", [TWO_SIGNALS, A_SIGNAL_BEFORE_STOP], ids=["two signals", "a signal before stop"])
def test_a_process_that_ends_requeues_the_messages_that_it_holds(
    options: dict[str, str], brokers: list[Broker], end: str
):
    del options["walLocation"]
    publish(brokers, "one")
    texts = json.dumps({**options, "ackMode": "commit", "msgTimeoutMs": "600000"})
    subprocess.run([sys.executable, "-c", HOLD_A_BATCH + end, texts], cwd=ROOT, timeout=60, check=True)
    assert [broker.in_flight("t", "c") for broker in brokers] == [0, 0]
    assert sum(broker.depth("t", "c") for broker in brokers) == 2 * COUNT


def test_a_query_survives_a_node_that_is_down(
    run: Any,
    spark: Any,
    brokers: list[Broker],
    make_broker: Callable[..., Broker],
    options: dict[str, str],
    tmp_path: Path,
):
    publish(brokers, "lost-node")
    sink = Sink(tmp_path / "lake")
    down = make_broker(http_address="127.0.0.1:0")
    options["nsqd.addresses"] += f",{down.address}"
    options["nsqd.http.addresses"] += f",{down.nsqd.http_address}"
    down.stop()
    run(sink)
    assert len(sink.bodies(spark)) == 2 * COUNT


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"maxInFlght": "3"}, "there is no option 'maxinflght'; did you mean 'maxInFlight'"),
        ({"maxInFlight": "many"}, "maxInFlight is 'many'"),
        ({"walLocation": ""}, "walLocation is not set"),
        ({"ackMode": "exactly-once"}, "ackMode is 'exactly-once'"),
    ],
    ids=["unknown", "text", "location", "mode"],
)
def test_a_wrong_option_is_an_error_of_load(spark: Any, options: dict[str, str], more: Any, sentence: str):
    with pytest.raises(Exception, match=sentence):
        spark.readStream.format("nsq").options(**{**options, **more}).load()


def test_another_schema_is_an_error(spark: Any, options: dict[str, str]):
    with pytest.raises(Exception, match="the schema is struct<body:string>; a read of NSQ has the columns body BINARY"):
        spark.read.format("nsq").options(**options).schema("body STRING").load().count()


def test_the_plan_of_a_read_is_refused_by_the_name_of_its_option() -> None:
    texts = {"subscribe": "t", "channel": "c", "nsqd.addresses": "a:1,b:1", "ackMode": "receive", "maxInFlight": "1"}
    with pytest.raises(OptionError, match="maxInFlight is 1; allowed is at least one for each of the 2 pairs"):
        NsqReader(batch_options(texts), "w").partitions()


def test_no_secret_is_in_a_plan_or_a_repr(
    spark: Any,
    options: dict[str, str],
    brokers: list[Broker],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    publish(brokers, "one", 1)
    secret = {"nsq.authSecret": "hunter2"}
    with caplog.at_level(logging.DEBUG, "nsqkit"):
        frame = load(spark, options, **secret)
        plan = frame._jdf.queryExecution().toString()
        assert frame.count() == 2
    source = NsqSource({**options, **secret})
    reader = source.reader(schema_of(spark))
    text = f"{capfd.readouterr()}{caplog.text}{plan}{source!r}{reader!r}{reader.__dict__!r}"
    assert "hunter2" not in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    # It travels to the executors in the pickled reader only.
    assert b"hunter2" in pickle.dumps(reader)


def test_a_job_without_a_call_of_register_finds_the_source(options: dict[str, str], brokers: list[Broker], tmp_path):
    publish(brokers, "one")
    job = tmp_path / "job.py"
    job.write_text(
        "import json, sys\n"
        "from pyspark.sql import SparkSession\n"
        'spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()\n'
        'print("rows:", spark.read.format("nsq").options(**json.loads(sys.argv[1])).load().count())\n'
    )
    run = subprocess.run(
        [sys.executable, job, json.dumps(options)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert f"rows: {2 * COUNT}" in run.stdout, run.stderr


def test_the_shim_imports_nothing_until_it_is_used():
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['nsqkit'] = None\n"
        "import pyspark_nsq\n"
        "try: pyspark_nsq.DefaultSource(options={})\n"
        "except ImportError as error: print(pyspark_nsq.DefaultSource.name(), error.name)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "nsq nsqkit.spark\n"
