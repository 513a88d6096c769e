"""The plan of a batch read, on the driver; no executor runs here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.batch_reader import FOLDER, WAIT, BatchRead
from nsqkit.spark.read_task import AdoptedTask, ReceiveTask, WalTask
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot
from nsqkit.spark.source_options import batch_options
from tests.spark.fake_cluster import FakeCluster, ManualTime, Messages


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def read(tmp_path: Path, cluster: FakeCluster, time: ManualTime) -> Any:
    """Make the driver's side of one load()."""

    def read(wal_id: str = "w", **options: Any) -> BatchRead:
        texts = {
            "subscribe": "orders",
            "channel": "etl",
            "nsqd.addresses": "a:4150,b:4150",
            "nsqd.http.addresses": "a:4151,b:4151",
            **({} if "ackMode" in options else {"walLocation": str(tmp_path)}),
            **options,
        }
        return BatchRead(batch_options(texts), wal_id, cluster, time.now_ns, time.sleep)

    return read


def fill(task: Any) -> None:
    log = task.wal.open(0).partition(0, 0)
    log.put_slot(0, DataSlot((MessageKey("a:4150", "orders", b"0" * 16),), b""))
    log.put_seal(1, SealSlot(FinOutcome(), RowCounts(1)))


def test_each_action_of_a_load_has_the_same_tasks(read: Any, cluster: FakeCluster) -> None:
    tasks = read().tasks()
    fill(tasks[0])
    cluster.addresses = ["c:4150"]
    assert read().tasks() == tasks
    assert [type(task) for task in tasks] == [WalTask, WalTask]


def test_another_load_has_a_wal_of_its_own(read: Any, tmp_path: Path) -> None:
    fill(read("first").tasks()[0])
    tasks = read("second").tasks()
    assert {task.wal.wal_id for task in tasks} == {"second"}
    assert {key.split("/")[0] for key in LocalStore(tmp_path / FOLDER).list("")} == {"first", "second"}


def test_the_rows_of_other_loads_are_reported(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(read("first").tasks()[0])
    with caplog.at_level(logging.WARNING):
        read("second").tasks()
        read("second").tasks()
    assert ["the rows of 1 earlier reads" in line and ": first." in line for line in caplog.messages] == [True, True]


def test_the_rows_of_other_loads_are_adopted_if_asked(read: Any) -> None:
    fill(read("first").tasks()[0])
    tasks = read("second", onOrphanedWal="adopt").tasks()
    assert [task.logs for task in tasks if isinstance(task, AdoptedTask)] == [(("first", 0, 0),)]
    assert read("second", onOrphanedWal="adopt").tasks() == tasks


def test_the_rows_of_other_loads_are_an_error_if_asked(read: Any) -> None:
    fill(read("first").tasks()[0])
    with pytest.raises(OptionError, match="has rows of topic 'orders' and channel 'etl' in WAL first"):
        read("second", onOrphanedWal="fail").tasks()


def test_receive_needs_no_wal(read: Any) -> None:
    assert [type(task) for task in read(ackMode="receive").tasks()] == [ReceiveTask, ReceiveTask]


def test_a_read_reports_the_messages_that_it_leaves(
    read: Any, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.backlogs = [Messages(depth=10, in_flight=3, deferred=2)]
    with caplog.at_level(logging.WARNING):
        read().tasks()
        read().tasks()
    (message,) = caplog.messages
    assert message == (
        "a read of topics orders and channel etl begins with 10 messages, and leaves 3 in flight to other consumers "
        "and 2 deferred"
    )


def test_a_read_waits_for_messages_in_flight_if_asked(
    read: Any, cluster: FakeCluster, time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.backlogs = [Messages(in_flight=3), Messages(in_flight=3), Messages(depth=3)]
    read(waitInFlight="true").tasks()
    assert time.waits == [WAIT, WAIT]
    assert not caplog.messages


def test_a_read_waits_one_message_timeout(read: Any, cluster: FakeCluster, time: ManualTime) -> None:
    cluster.backlogs = [Messages(in_flight=3)]
    read(waitInFlight="true", msgTimeoutMs="2000").tasks()
    assert sum(time.waits) == pytest.approx(2)


def test_too_few_messages_in_flight_are_an_error(read: Any) -> None:
    with pytest.raises(OptionError, match="max_in_flight is 1; allowed is at least one for each of the 2 pairs"):
        read(maxInFlight="1").tasks()


def test_a_read_that_cannot_be_planned_leaves_nothing(read: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.addresses = []
    with pytest.raises(OptionError, match="the nsqlookupds list no nsqd for 'orders'"):
        read().tasks()
    assert LocalStore(tmp_path / FOLDER).list("") == []
