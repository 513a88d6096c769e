"""Tests of ``nsqkit.broker.core.disk.sync``; those of the queues are beside the queues."""

from __future__ import annotations

import errno
from random import Random

import pytest

from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.sync import SyncBatch
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore, new_state

LIMITS = BrokerOptions(max_bytes_per_file=1000, max_msg_size=1000, sync_every=100)


def begun(store: MemoryFileStore, *, is_commit: bool = False) -> tuple[list[DiskQueue], SyncBatch]:
    """Begin a sync of two queues with a message each."""
    queues = [DiskQueue(store, name, LIMITS, new_state()) for name in ("t", "u")]
    for queue in queues:
        queue.put([encode_message(1, 1, b"0" * 16, b"x")])
    return queues, SyncBatch(store, [queue.begin_sync() for queue in queues], None, is_commit=is_commit)


def test_one_queue_that_fails_does_not_keep_the_others_from_a_sync():
    store = MemoryFileStore()
    queues, batch = begun(store)
    store.fail(errno.EIO, times=1)
    batch.sync_data()
    batch.write_positions()
    batch.rename_positions()
    batch.sync_names()
    batch.end()
    assert [queue.needs_sync for queue in queues] == [True, False]
    assert store.files["t.diskqueue.meta.dat"].startswith(b"0")
    assert store.files["u.diskqueue.meta.dat"].startswith(b"1")


def test_commit_raises_the_error_of_one_queue():
    store = MemoryFileStore()
    _, batch = begun(store, is_commit=True)
    store.fail(errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        batch.sync_data()


@pytest.mark.parametrize("step", ["write_positions", "rename_positions", "sync_names"])
def test_error_of_a_step_leaves_no_temporary_file_and_the_queues_unsynced(step):
    store = MemoryFileStore()
    queues, batch = begun(store)
    batch.sync_data()
    for each in ("write_positions", "rename_positions", "sync_names"):
        if each == step:
            store.fail(errno.ENOSPC, times=2 if each != "sync_names" else 1)
        getattr(batch, each)()
        store.recover()
    batch.end()
    assert any(queue.needs_sync for queue in queues)
    assert not any(name.endswith(".tmp") for name in store.files) or step == "rename_positions"


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_messages_of_a_sync_that_failed_are_written_by_the_next(is_abandoned):
    store = MemoryFileStore()
    queues, batch = begun(store, is_commit=True)
    store.fail(errno.EIO, after=1, times=1)  # behind the positions of the first queue, its messages
    with pytest.raises(OSError, match="Input/output error"):
        batch.sync_data()
    if is_abandoned:
        batch.abandon()
    else:
        batch.rewrite()
        batch.end()
    for queue in queues:
        queue.sync()
    after = store.power_cut(Random(1))
    assert after.files == store.files


def test_sync_that_is_abandoned_leaves_the_files_to_the_close():
    store = MemoryFileStore()
    queues, batch = begun(store)
    batch.sync_data()
    batch.write_positions()
    batch.abandon()
    assert not any(name.endswith(".tmp") for name in store.files)
    for queue in queues:
        queue.close()
    assert store.open_count == 0
    assert store.files["t.diskqueue.meta.dat"].startswith(b"1")
