"""Writes of a real Spark session. Needs Java: `tox -e spark`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqkit.spark import register
from nsqkit.testing import AuthNsqdServer, Cluster, NsqdServer, NsqlookupdServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def spark(spark_session: SparkSession) -> SparkSession:
    register(spark_session)
    return spark_session


def save(frame: DataFrame, mode: str = "append", **options: Any) -> None:
    frame.write.format("nsq").options(**{name.replace("__", "."): value for name, value in options.items()}).mode(
        mode
    ).save()


def bodies(nsqd: NsqdServer, topic: str = "t") -> list[bytes]:
    return [message.body for message in nsqd.messages(topic)]


def numbers(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as body")


def test_all_rows_of_a_frame_arrive(spark: SparkSession, make_nsqd: Callable[..., NsqdServer]):
    nsqds = [make_nsqd(), make_nsqd()]
    addresses = ",".join(nsqd.tcp_address for nsqd in nsqds)
    save(numbers(spark, 1000, 4), topic="t", nsqd__addresses=addresses, mpubBatch=100)
    found = [bodies(nsqd) for nsqd in nsqds]
    assert sorted(map(int, found[0] + found[1])) == list(range(1000))
    assert all(found)


def test_columns_choose_topic_and_delay(spark: SparkSession, nsqd: NsqdServer):
    frame = spark.createDataFrame(
        [(b"1", "u", "k", None), (b"2", None, None, 60_000)], "body binary, topic string, key string, deferMs int"
    )
    save(frame, topic="t", nsqd__addresses=nsqd.tcp_address, partitionBy="key")
    assert bodies(nsqd, "u") == [b"1"]
    assert bodies(nsqd, "t") == [b"2"]
    assert nsqd.journal.commands("DPUB")[0].params == ("t", "60000")


def test_rows_of_a_stream_arrive(spark: SparkSession, nsqd: NsqdServer, tmp_path: Path):
    numbers(spark, 300, 2).write.parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("body string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
        .writeStream.format("nsq")
        .queryName("copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("nsqd.addresses", nsqd.tcp_address)
        .option("topic", "t")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.name == "copy"
    assert sorted(map(int, bodies(nsqd))) == list(range(300))


@pytest.mark.nsq_cluster(nsqds=2, nsqlookupds=1)
def test_nsqds_are_those_of_the_nsqlookupds(spark: SparkSession, nsq_cluster: Cluster):
    nsq_cluster.wait_registered()
    (nsqlookupd,) = nsq_cluster.nsqlookupds
    save(numbers(spark, 10, 1), topic="t", lookupd__addresses=nsqlookupd.http_address, mpubBatch=5)
    assert [len(bodies(nsqd)) for nsqd in nsq_cluster.nsqds] == [5, 5]


@pytest.mark.nsqd(journal=False)
def test_a_task_that_fails_loses_no_row_and_repeats_those_that_it_has_sent(spark: SparkSession, nsqd: NsqdServer):
    count = 200_000
    # Twice: a client that is sending may see the end of its connection before the error, and then sends MPUB again.
    with nsqd.faults.error("E_BAD_MESSAGE", command="MPUB", after=10, times=2) as refusal:
        save(numbers(spark, count, 1), topic="t", nsqd__addresses=nsqd.tcp_address)
        assert refusal.count == 2
    arrived = Counter(map(int, bodies(nsqd)))
    assert set(arrived) == set(range(count))
    repeated = {number for number, times in arrived.items() if times > 1}
    assert set(range(10_000)) <= repeated
    print(f"lost 0, repeated {sum(arrived.values()) - count}")


@pytest.mark.parametrize(
    ("columns", "options", "mode", "expected"),
    [
        ("body", {"topc": "t"}, "append", "there is no option 'topc'; did you mean 'topic'?"),
        ("body", {"mpubBatch": "0"}, "append", "mpubBatch is '0'; allowed is"),
        ("body", {"deferMs": "3600001"}, "append", "deferMs is 3600001; allowed is 0 to 3600000"),
        ("body", {"lookupd.addresses": "a:1"}, "append", "nsqd.addresses and lookupd.addresses are both set"),
        ("body", {}, "append", "there is neither a column topic nor an option topic"),
        ("'a' as value", {"topic": "t"}, "append", "the column 'value' cannot be published"),
        ("1 as body", {"topic": "t"}, "append", "the column body is int; allowed is binary or string"),
        ("body", {"topic": "t"}, "overwrite", "the mode overwrites; allowed is append"),
    ],
)
def test_what_cannot_be_published_is_refused_before_any_task(
    spark: SparkSession, columns: str, options: dict[str, str], mode: str, expected: str
):
    frame = numbers(spark, 1, 1).selectExpr(columns)
    with pytest.raises(Exception, match="OptionError") as caught:
        save(frame, mode, **{"nsqd.addresses": "127.0.0.1:1", **options})
    assert expected in str(caught.value)


def test_nsqlookupds_that_do_not_answer_are_in_the_error(spark: SparkSession, nsqlookupd: NsqlookupdServer):
    address = nsqlookupd.http_address
    with pytest.raises(Exception, match="list no nsqd"):
        save(numbers(spark, 1, 1), topic="t", lookupd__addresses=address)
    nsqlookupd.stop()
    with pytest.raises(Exception, match="RequestFailed") as caught:
        save(numbers(spark, 1, 1), topic="t", lookupd__addresses=f"http://user:hush@{address}")
    assert address in str(caught.value)
    assert "hush" not in str(caught.value)


def descriptions_of_plans(spark: SparkSession) -> Iterator[str]:
    """Return what Spark's UI shows."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for index in range(executions.size()):
        yield executions.apply(index).physicalPlanDescription()


def test_a_secret_is_in_no_plan_and_no_error(spark: SparkSession, nsqd_auth: AuthNsqdServer):
    nsqd_auth.auth.grant("hush-hush", topic="t", permissions=["publish"])
    options = {"topic": "t", "nsqd.addresses": nsqd_auth.tcp_address}
    frame = numbers(spark, 10, 1)
    save(frame, **{**options, "nsq.authSecret": "hush-hush"})
    assert len(bodies(nsqd_auth)) == 10
    with pytest.raises(Exception, match=r"E_AUTH_FAILED|E_UNAUTHORIZED") as caught:
        save(frame, **{**options, "nsq.authSecret": "wrong-hush"})
    assert "hush" not in str(caught.value)
    with pytest.raises(Exception, match="OptionError") as caught:
        save(frame, **{**options, "nsq.authSecret": "hush\n"})
    assert "hush" not in str(caught.value)
    plans = list(descriptions_of_plans(spark))
    assert any("WriteToDataSource" in plan or "AppendData" in plan for plan in plans)
    assert not [plan for plan in plans if "hush" in plan]
