"""Offsets, plans and the life of a WAL, as the calls of Spark make them; no executor runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from nsqkit.clock import NS_PER_S
from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import PartitionShare
from nsqkit.spark.batch_reader import WAIT
from nsqkit.spark.read_task import AdoptedTask, ReadTask, ReceiveTask, WalTask
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot
from nsqkit.spark.slots.wal import Wal
from nsqkit.spark.source_options import stream_options
from nsqkit.spark.stream_offset import Offset
from nsqkit.spark.stream_reader import ReceiveStream, WalStream
from tests.pages import ROOT
from tests.spark.fake_cluster import FakeCluster, ManualTime, Messages


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def make_stream(tmp_path: Path, cluster: FakeCluster, time: ManualTime) -> Any:
    """Make the driver's side of one run of a query."""

    def make_stream(kind: Any = WalStream, **options: Any) -> Any:
        texts = {
            "subscribe": "orders",
            "channel": "etl",
            "nsqd.addresses": "a:4150,b:4150",
            "nsqd.http.addresses": "a:4151,b:4151",
            **({"walLocation": str(tmp_path)} if kind is WalStream else {"ackMode": "receive"}),
            **options,
        }
        return kind(stream_options(texts), cluster, time.now_ns, time.sleep)

    return make_stream


def run_batch(stream: WalStream, start: Offset, row_count: int = 5) -> Offset:
    """Run one batch as Spark does, with a task that stores ``row_count`` rows; return its end."""
    end = stream.latest_offset(start, read_all=False)
    task = stream.tasks(start, end)[0]
    assert isinstance(task, WalTask)
    log = task.wal.open(task.batch).partition(task.batch, 0)
    keys = tuple(MessageKey("a:4150", "orders", b"%016d" % (end["n"] * 100 + i)) for i in range(row_count))
    log.put_slot(0, DataSlot(keys, b""))
    log.put_seal(1, SealSlot(FinOutcome(), RowCounts(row_count)))
    return end


def shares(tasks: list[ReadTask]) -> list[PartitionShare]:
    return [task.share for task in tasks if isinstance(task, WalTask)]


def test_the_initial_offset_is_the_same_each_time_and_creates_no_wal(make_stream: Any, tmp_path: Path) -> None:
    stream = make_stream()
    assert stream.initial_offset() == stream.initial_offset()
    assert LocalStore(tmp_path).list("") == []
    stream.latest_offset(stream.initial_offset(), read_all=False)
    stream.latest_offset(stream.initial_offset(), read_all=False)
    assert [key.split("/")[1] for key in LocalStore(tmp_path).list("")] == ["wal.json"]


def test_an_empty_channel_has_no_batch(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream()
    cluster.backlogs = [Messages(in_flight=4), Messages(depth=1)]
    start = stream.initial_offset()
    assert stream.latest_offset(start, read_all=False) == start
    assert stream.latest_offset(start, read_all=False) == {**start, "n": 1}


def test_without_depths_each_trigger_has_a_batch(make_stream: Any, cluster: FakeCluster) -> None:
    cluster.backlogs = [Messages()]
    stream = make_stream(depthCheck="none")
    assert stream.latest_offset(stream.initial_offset(), read_all=False)["n"] == 1


def test_a_batch_is_planned_once(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream(partitions="4")
    start = stream.initial_offset()
    end = stream.latest_offset(start, read_all=False)
    planned = stream.tasks(start, end)
    cluster.addresses = ["c:4150"]
    assert stream.tasks(start, end) == planned
    assert len(planned) == 4


def test_a_restart_with_other_partitions_replays_the_stored_plan(make_stream: Any) -> None:
    first = make_stream(partitions="4")
    start = run_batch(first, first.initial_offset())
    end = first.latest_offset(start, read_all=False)
    planned = shares(first.tasks(start, end))
    second = make_stream(partitions="2")
    assert shares(second.tasks(start, end)) == planned
    assert len(planned) == 4
    later = second.latest_offset(end, read_all=False)
    assert len(second.tasks(end, later)) == 2


def test_a_restart_in_the_first_batch_continues_its_wal(make_stream: Any, tmp_path: Path) -> None:
    first = make_stream()
    start = first.initial_offset()
    end = first.latest_offset(start, read_all=False)
    planned = first.tasks(start, end)
    # The checkpoint has the end of the batch only, so Spark passes the initial offset of the new run.
    second = make_stream()
    assert second.tasks(second.initial_offset(), end) == planned
    assert second.latest_offset(end, read_all=False) == {"wal": start["wal"], "n": 2}
    assert len({key.split("/")[0] for key in LocalStore(tmp_path).list("")}) == 1


def test_a_new_node_is_in_the_next_plan(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream()
    end = run_batch(stream, stream.initial_offset())
    cluster.addresses.append("c:4150")
    later = stream.latest_offset(end, read_all=False)
    found = {connection.nsqd_address for share in shares(stream.tasks(end, later)) for connection in share.connections}
    assert found == {"a:4150", "b:4150", "c:4150"}


def test_the_limits_of_a_trigger_are_those_of_its_plan(make_stream: Any) -> None:
    stream = make_stream(maxRecordsPerTrigger="7", maxBytesPerTrigger="100")
    start = stream.initial_offset()
    planned = shares(stream.tasks(start, stream.latest_offset(start, read_all=False)))
    assert [(share.records_max, share.bytes_max) for share in planned] == [(4, 50), (3, 50)]


def test_a_trigger_for_all_messages_has_no_limits(make_stream: Any) -> None:
    stream = make_stream(maxRecordsPerTrigger="7", maxBytesPerTrigger="100")
    start = stream.initial_offset()
    planned = shares(stream.tasks(start, stream.latest_offset(start, read_all=True)))
    assert [(share.records_max, share.bytes_max) for share in planned] == [(None, None)] * 2


def test_available_now_ends_at_the_messages_that_were_there(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream(maxRecordsPerTrigger="5")
    cluster.backlogs = [Messages(depth=8)]
    stream.begin_available_now()
    first = run_batch(stream, stream.initial_offset())
    second = stream.latest_offset(first, read_all=False)
    assert sum(share.records_max or 0 for share in shares(stream.tasks(first, second))) == 3
    second = run_batch(stream, first, row_count=3)
    assert stream.latest_offset(second, read_all=False) == second


def test_available_now_of_a_new_channel_ends_while_messages_arrive(make_stream: Any, cluster: FakeCluster) -> None:
    cluster.backlogs = [None, None, Messages(depth=8)]
    stream = make_stream()
    stream.begin_available_now()
    first = run_batch(stream, stream.initial_offset())
    second = stream.latest_offset(first, read_all=False)
    assert sum(share.records_max or 0 for share in shares(stream.tasks(first, second))) == 8
    second = run_batch(stream, first, row_count=8)
    assert stream.latest_offset(second, read_all=False) == second


def test_available_now_waits_for_messages_in_flight(make_stream: Any, cluster: FakeCluster, time: ManualTime) -> None:
    stream = make_stream()
    cluster.backlogs = [Messages(in_flight=2), Messages(in_flight=2), Messages(in_flight=2), Messages(depth=2)]
    stream.begin_available_now()
    assert stream.latest_offset(stream.initial_offset(), read_all=False)["n"] == 1
    assert time.waits == [WAIT, WAIT]


def test_available_now_gives_up_after_one_message_timeout(
    make_stream: Any, cluster: FakeCluster, time: ManualTime
) -> None:
    stream = make_stream(msgTimeoutMs="2000")
    cluster.backlogs = [Messages(in_flight=2)]
    stream.begin_available_now()
    start = stream.initial_offset()
    assert stream.latest_offset(start, read_all=False) == start
    assert sum(time.waits) == pytest.approx(2)


def test_available_now_ends_if_no_nsqd_delivers(
    make_stream: Any, cluster: FakeCluster, time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.backlogs = [Messages(depth=10)]
    stream = make_stream()
    stream.begin_available_now()
    start = stream.latest_offset(stream.initial_offset(), read_all=False)
    assert start["n"] == 1
    time.ns += 30 * NS_PER_S
    assert stream.latest_offset(start, read_all=False) == start
    assert "a run ends with 10 messages that wait" in caplog.text


def test_available_now_has_a_time_limit(make_stream: Any, time: ManualTime) -> None:
    stream = make_stream(availableNowTimeoutMs="1000")
    stream.begin_available_now()
    time.ns = 10**9
    start = stream.initial_offset()
    assert stream.latest_offset(start, read_all=False) == start


@pytest.mark.parametrize("available_now", [False, True])
def test_batches_behind_an_older_checkpoint_are_read_from_an_empty_channel(
    make_stream: Any, cluster: FakeCluster, available_now: bool
) -> None:
    first = make_stream()
    restored = run_batch(first, first.initial_offset())
    planned = run_batch(first, restored)
    last = run_batch(first, planned)
    cluster.backlogs = [Messages()]
    second = make_stream()
    if available_now:
        second.begin_available_now()
    assert second.latest_offset(restored, read_all=False) == planned
    assert second.latest_offset(planned, read_all=False) == last
    assert second.latest_offset(last, read_all=False) == last


def test_available_now_reads_the_messages_that_were_there_after_an_older_checkpoint(
    make_stream: Any, cluster: FakeCluster
) -> None:
    first = make_stream()
    restored = run_batch(first, first.initial_offset())
    last = run_batch(first, restored)
    cluster.backlogs = [Messages(depth=3)]
    second = make_stream()
    second.begin_available_now()
    assert second.latest_offset(restored, read_all=False) == last
    end = second.latest_offset(last, read_all=False)
    assert sum(share.records_max or 0 for share in shares(second.tasks(last, end))) == 3


def test_available_now_without_depths_reads_again_after_the_empty_batch_of_an_earlier_run(make_stream: Any) -> None:
    first = make_stream(depthCheck="none")
    first.begin_available_now()
    full = run_batch(first, first.initial_offset())
    empty = run_batch(first, full, row_count=0)
    assert first.latest_offset(empty, read_all=False) == empty
    second = make_stream(depthCheck="none")
    second.begin_available_now()
    full = run_batch(second, empty)
    assert full["n"] == empty["n"] + 1
    empty = run_batch(second, full, row_count=0)
    assert second.latest_offset(empty, read_all=False) == empty


def test_old_batches_are_removed_when_the_next_one_begins(make_stream: Any, tmp_path: Path) -> None:
    stream = make_stream(walRetainBatches="2")
    offset = stream.initial_offset()
    for _ in range(5):
        offset = run_batch(stream, offset)
    stream.latest_offset(offset, read_all=False)
    plans = [key for key in LocalStore(tmp_path).list("") if "/plan/" in key]
    assert sorted(plans) == [f"{offset['wal']}/plan/{batch}.json" for batch in (3, 4)]


def test_a_lost_checkpoint_is_an_error(make_stream: Any) -> None:
    first = make_stream()
    run_batch(first, first.initial_offset())
    second = make_stream()
    with pytest.raises(OptionError, match="has rows of topic 'orders' and channel 'etl' in WAL"):
        second.latest_offset(second.initial_offset(), read_all=False)


def test_the_rows_of_a_lost_checkpoint_are_adopted(make_stream: Any, cluster: FakeCluster) -> None:
    first = make_stream()
    old = run_batch(first, first.initial_offset())
    cluster.backlogs = [Messages()]
    second = make_stream(onOrphanedWal="adopt")
    start = second.initial_offset()
    # There is a batch for them although no message is waiting.
    end = second.latest_offset(start, read_all=False)
    adopted = [task for task in second.tasks(start, end) if isinstance(task, AdoptedTask)]
    assert [task.logs for task in adopted] == [((old["wal"], 0, 0),)]
    assert adopted[0].partition == 2
    assert second.latest_offset(end, read_all=False) == end


def test_the_rows_of_a_lost_checkpoint_are_ignored_if_asked(make_stream: Any) -> None:
    first = make_stream()
    run_batch(first, first.initial_offset())
    second = make_stream(onOrphanedWal="ignore")
    end = second.latest_offset(second.initial_offset(), read_all=False)
    assert len(second.tasks(second.initial_offset(), end)) == 2


def test_a_checkpoint_without_its_wal_is_an_error(make_stream: Any) -> None:
    with pytest.raises(OptionError, match="the checkpoint names WAL gone, which walLocation does not have"):
        make_stream().latest_offset({"wal": "gone", "n": 4}, read_all=False)


def test_a_location_that_cannot_be_written_is_an_error(make_stream: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stream = make_stream(walLocation=str(tmp_path / "file" / "wal"))
    with pytest.raises(OptionError, match="cannot hold slots"):
        stream.latest_offset(stream.initial_offset(), read_all=False)


def test_the_report_has_the_depths_and_the_last_batch(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream()
    assert stream.report() is None
    end = run_batch(stream, stream.initial_offset())
    cluster.backlogs = [Messages(1, 2, 3)]
    stream.latest_offset(end, read_all=False)
    assert stream.report() == {
        **end,
        "depth": 1,
        "inFlight": 2,
        "deferred": 3,
        "rows": 5,
        "finFailed": 0,
        "ambiguousSlots": 0,
    }


def test_the_page_lists_each_field_of_the_report(make_stream: Any) -> None:
    stream = make_stream()
    stream.latest_offset(run_batch(stream, stream.initial_offset()), read_all=False)
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in stream.report() if f"`{name}`" not in page] == []


def test_receive_has_offsets_without_a_wal(make_stream: Any, cluster: FakeCluster) -> None:
    stream = make_stream(ReceiveStream)
    start = stream.initial_offset()
    end = stream.latest_offset(start, read_all=False)
    assert end == {"ackMode": "receive", "n": 1}
    assert [type(task) for task in stream.tasks(start, end)] == [ReceiveTask] * 2
    assert stream.tasks(end, end) == []
    cluster.backlogs = [Messages(depth=0, in_flight=1)]
    assert stream.latest_offset(end, read_all=False) == end
    assert stream.report() == {"ackMode": "receive", "n": 1, "depth": 0, "inFlight": 1, "deferred": 0}


def test_available_now_without_depths_is_one_batch_of_receive(make_stream: Any) -> None:
    stream = make_stream(ReceiveStream, depthCheck="none")
    stream.begin_available_now()
    end = stream.latest_offset(stream.initial_offset(), read_all=False)
    assert end["n"] == 1
    assert stream.latest_offset(end, read_all=False) == end


@pytest.mark.parametrize("is_new", [False, True], ids=["channel", "new channel"])
def test_available_now_of_receive_ends_while_messages_arrive(
    make_stream: Any, cluster: FakeCluster, is_new: bool
) -> None:
    cluster.backlogs = [
        *([None, None] if is_new else [Messages(depth=8, finished_count=-2)]),
        Messages(depth=8, finished_count=-2),
        # One nsqd had fewer messages than its share of the batch.
        Messages(depth=20, finished_count=3),
        Messages(depth=20, finished_count=6),
    ]
    stream = make_stream(ReceiveStream)
    stream.begin_available_now()
    offset = stream.initial_offset()
    limits: list[list[int | None]] = []
    while (end := stream.latest_offset(offset, read_all=False)) != offset and len(limits) < 9:
        limits.append([task.share.records_max for task in stream.tasks(offset, end)])
        offset = end
    assert limits == [*([[None, None]] if is_new else []), [4, 4], [2, 1]]


def test_the_checkpoint_of_another_mode_is_an_error(make_stream: Any) -> None:
    with pytest.raises(OptionError, match="ackMode is 'receive', but the checkpoint is of a query with ackMode 'wal'"):
        make_stream(ReceiveStream).latest_offset({"wal": "w", "n": 1}, read_all=False)


def test_a_task_without_the_plan_of_its_batch_is_refused(make_stream: Any, tmp_path: Path) -> None:
    stream = make_stream()
    start = stream.initial_offset()
    task = stream.tasks(start, stream.latest_offset(start, read_all=False))[0]
    elsewhere = attrs.evolve(task.wal, location=str(tmp_path / "elsewhere"))
    with pytest.raises(OptionError, match="a directory or an object store that the driver and all executors share"):
        elsewhere.open(0)
    assert isinstance(task.wal.open(0), Wal)
