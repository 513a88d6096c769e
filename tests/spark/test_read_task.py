"""The tasks of executors: repeated, at a time in two processes, and over logs of other WALs. They need pyarrow."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import BatchPlan, named_nodes, plan_spec, store_plan
from nsqkit.spark.batch_reader import wal_info, wal_tasks
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.read_task import ReadTask, ReceiveTask, WalTask
from nsqkit.spark.schema import BATCH_SHIFT, PARTITION_SHIFT, arrow_schema
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.maintenance import OrphanPolicy, create_wal
from tests.spark.time_limits import FIRST_DELIVERY_MAX

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

COUNT = 2000


@pytest.fixture
def spec(broker: Broker) -> ConsumerSpec:
    return ConsumerSpec(
        topics=("t",),
        channel="c",
        nsqd_tcp_addresses=(broker.address,),
        partitions=2,
        max_in_flight=500,
        max_messages=COUNT,
        empty_for=FIRST_DELIVERY_MAX,
    )


@pytest.fixture
def plan(spec: ConsumerSpec, tmp_path: Path) -> Callable[..., list[ReadTask]]:
    """Plan the first batch of a WAL."""

    def plan(wal_id: str = "w", on_orphaned: OrphanPolicy = "fail") -> list[ReadTask]:
        wal = create_wal(LocalStore(tmp_path), wal_id, wal_info(spec), on_orphaned)
        return wal_tasks(str(tmp_path), wal, store_plan(wal, BatchPlan(0, 0, plan_spec(spec, named_nodes(spec)))))

    return plan


def read(task: ReadTask, spec: ConsumerSpec) -> pa.Table:
    return pa.Table.from_batches(task.read(spec), schema=arrow_schema())


def read_as_bytes(pickled: bytes) -> bytes:
    """Read in another process; return the bytes of the rows."""
    task, spec = pickle.loads(pickled)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema()) as stream:
        stream.write_table(read(task, spec))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def bodies(*tables: pa.Table) -> list[bytes]:
    return sorted(body for table in tables for body in table["body"].to_pylist())


def publish(broker: Broker, prefix: str, count: int = COUNT) -> list[bytes]:
    sent = [f"{prefix}-{n}".encode() for n in range(count)]
    broker.publish("t", sent)
    return sorted(sent)


def test_a_repeated_task_has_the_same_rows(plan: Any, spec: ConsumerSpec, broker: Broker):
    sent = publish(broker, "one")
    tasks = plan()
    first = [read(task, spec) for task in tasks]
    assert bodies(*first) == sent
    publish(broker, "two")
    assert [read(pickle.loads(pickle.dumps(task)), spec) for task in tasks] == first
    assert broker.depth("t", "c") == COUNT


def test_rows_are_numbered_by_batch_partition_and_place(plan: Any, spec: ConsumerSpec, broker: Broker):
    publish(broker, "one")
    for task in plan():
        assert isinstance(task, WalTask)
        numbers = read(task, spec)["batchSeq"].to_pylist()
        first = task.batch << BATCH_SHIFT | task.share.index << PARTITION_SHIFT
        assert numbers == list(range(first, first + len(numbers)))


def test_two_attempts_at_a_time_have_the_same_rows(plan: Any, spec: ConsumerSpec, broker: Broker):
    sent = publish(broker, "one")
    tasks = plan()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        attempts = [[pool.submit(read_as_bytes, pickle.dumps((task, spec))) for _ in range(2)] for task in tasks]
        found = [[attempt.result(timeout=60) for attempt in of_task] for of_task in attempts]
    for one, other in found:
        assert one == other
    rows = [pa.ipc.open_stream(one).read_all() for one, _ in found]
    # An attempt that lost requeued its messages; they are still there.
    assert len(bodies(*rows)) == len(set(bodies(*rows)))
    assert set(bodies(*rows)) <= set(sent)
    assert broker.depth("t", "c") == COUNT - len(bodies(*rows))
    assert broker.in_flight("t", "c") == 0


def test_the_rows_of_an_orphaned_wal_are_read_without_a_connection(plan: Any, spec: ConsumerSpec, broker: Broker):
    sent = publish(broker, "one")
    for task in plan("old"):
        read(task, spec)
    publish(broker, "two")
    drain, *adopted = [task for task in plan("new", "adopt") if not isinstance(task, WalTask)]
    broker.stop()
    found = [read(task, spec) for task in (drain, *adopted)]
    assert bodies(*found) == sent
    numbers = [number for table in found for number in table["batchSeq"].to_pylist()]
    assert len(set(numbers)) == COUNT


def test_a_task_without_the_drivers_directory_receives_nothing(
    plan: Any, spec: ConsumerSpec, broker: Broker, tmp_path: Path
):
    publish(broker, "one")
    task = plan()[0]
    (tmp_path / "w" / "plan" / "0.json").unlink()
    with pytest.raises(OptionError, match="it has to be a directory or an object store that the driver and all"):
        read(task, spec)
    assert broker.nsqd.broker.topics[b"t"].channels == {}


def test_an_nsqd_that_is_not_reached_is_logged(spec: ConsumerSpec, broker: Broker, caplog: pytest.LogCaptureFixture):
    publish(broker, "one")
    both = attrs.evolve(spec, nsqd_tcp_addresses=(broker.address, "127.0.0.1:1"), fail_on_node_loss=False)
    (share,) = plan_spec(attrs.evolve(both, partitions=1), named_nodes(both))
    read(ReceiveTask(7, share), both)
    assert "partition 0 of batch 7 has no messages of 1 of its nsqds, which it did not reach" in caplog.text


def test_receive_finishes_on_receipt(spec: ConsumerSpec, broker: Broker):
    sent = publish(broker, "one")
    found = [read(ReceiveTask(3, share), spec) for share in plan_spec(spec, named_nodes(spec))]
    assert bodies(*found) == sent
    assert broker.depth("t", "c") == 0
    assert found[0]["batchSeq"].to_pylist()[:1] == [3 << BATCH_SHIFT]


def test_received_rows_are_divided_by_their_bytes(spec: ConsumerSpec, broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """Arrow's texts have 2 GiB at most, and a batch read has no limit."""
    monkeypatch.setattr("nsqkit.spark.read_task.RECEIVED_BYTES", 1000, raising=False)
    sent = publish(broker, "one", 500)
    (share,) = plan_spec(attrs.evolve(spec, partitions=1), named_nodes(spec))
    batches = list(ReceiveTask(0, share).read(spec))
    assert len(batches) >= 3
    table = pa.Table.from_batches(batches, schema=arrow_schema())
    assert bodies(table) == sent
    assert table["batchSeq"].to_pylist() == list(range(500))


def test_receive_without_messages_has_no_rows(spec: ConsumerSpec, broker: Broker):
    assert list(ReceiveTask(0, plan_spec(spec, named_nodes(spec))[0]).read(spec)) == []
