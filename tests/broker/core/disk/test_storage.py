from __future__ import annotations

import errno
from random import Random

import pytest

from nsqkit.broker.core.disk.durable_queue import KeptQueue
from nsqkit.broker.core.disk.storage import BATCH_QUEUES_MAX, DiskStorage, DurableStorage, MemoryStorage
from nsqkit.broker.core.disk.sync import SyncBatch
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore

NOW_NS = 1_700_000_000 * 10**9
FRAME = encode_message(NOW_NS, 1, b"0" * 16, b"body")
OPTIONS = BrokerOptions(mem_queue_size=1, sync_timeout_ns=5)


def make(path, kind=DiskStorage):
    return kind(DirectoryFileStore(str(path)), OPTIONS)


def test_messages_beyond_mem_queue_size_go_to_files(tmp_path):
    queue = make(tmp_path).open_queue(b"t", ephemeral=False)
    assert queue.put([FRAME] * 3) == 1
    assert (len(queue), len(queue.backend)) == (3, 2)
    assert tmp_path.joinpath("t.diskqueue.000000.dat").exists()


@pytest.mark.parametrize("storage", [MemoryStorage(1), None])
def test_ephemeral_queue_drops_messages_beyond_mem_queue_size(tmp_path, storage):
    queue = (storage or make(tmp_path)).open_queue(b"t#ephemeral", ephemeral=True)
    queue.put([FRAME] * 3)
    assert len(queue) == 1
    assert list(tmp_path.iterdir()) == []


def run_sync(storage: DiskStorage, *, names_are_saved: bool = True) -> SyncBatch:
    """Do what ``Persistence`` does."""
    batch = storage.begin_sync(names_are_saved=names_are_saved)
    try:
        batch.sync_data()
    except OSError as error:
        batch.fail(error)
    if batch.has_positions:
        batch.write_positions()
        batch.rename_positions()
        batch.sync_names()
    storage.end_sync(batch)
    return batch


def test_sync_is_due_after_sync_timeout():
    directory = MemoryFileStore()
    storage = DiskStorage(directory, OPTIONS)
    assert storage.sync_deadline(NOW_NS) is None
    storage.open_queue(b"t", ephemeral=False).put([FRAME] * 3)
    assert storage.sync_deadline(NOW_NS) == NOW_NS + 5
    assert not storage.wants_sync
    storage.handle_deadline(NOW_NS + 5)
    assert (storage.wants_sync, storage.has_news) == (True, True)
    run_sync(storage)
    assert synced(directory) == ["t"]
    assert (storage.wants_sync, storage.sync_deadline(NOW_NS)) == (False, None)


def synced(directory: MemoryFileStore) -> list[str]:
    return [name.removesuffix(".diskqueue.meta.dat") for name, data in directory.files.items() if data[:1] == b"2"]


def filled(count: int) -> tuple[DiskStorage, MemoryFileStore]:
    """Make queues with two messages each on disk, which their positions do not count yet."""
    directory = MemoryFileStore()
    storage = DiskStorage(directory, OPTIONS)
    for number in range(count):
        storage.open_queue(b"t%d" % number, ephemeral=False).put([FRAME] * 3)
    return storage, directory


def test_many_queues_are_synced_in_batches():
    storage, directory = filled(BATCH_QUEUES_MAX + 3)
    storage.handle_deadline(NOW_NS)
    assert len(run_sync(storage).plans) == BATCH_QUEUES_MAX
    assert storage.wants_sync
    run_sync(storage)
    assert not storage.wants_sync
    assert len(synced(directory)) == BATCH_QUEUES_MAX + 3


def test_failed_sync_is_repeated_after_sync_timeout():
    storage, directory = filled(2)
    storage.handle_deadline(NOW_NS)
    directory.fail(errno.EIO)
    run_sync(storage)
    assert len(storage.take_reports()) == 2
    assert storage.take_reports() == []
    assert not storage.wants_sync
    assert storage.sync_deadline(NOW_NS) == NOW_NS + 5
    directory.recover()
    storage.handle_deadline(NOW_NS + 5)
    run_sync(storage)
    assert synced(directory) == ["t0", "t1"]


def test_reserved_ids_are_marked_by_a_sync():
    directory = MemoryFileStore()
    storage = DiskStorage(directory, OPTIONS)
    storage.guids.take(1, NOW_NS)
    storage.sync_deadline(NOW_NS)
    assert (storage.has_news, storage.wants_sync) == (True, True)
    run_sync(storage)
    assert not storage.wants_sync
    again = DiskStorage(directory.kill(), OPTIONS)
    again.open(NOW_NS)
    assert again.guids.used_tick == storage.guids.reserved_tick
    storage.close()
    later = DiskStorage(directory.kill(), OPTIONS)
    later.open(NOW_NS + 10**9)
    assert later.guids.used_tick == storage.guids.tick


def test_ids_that_begin_ahead_of_the_clock_are_marked_at_the_start():
    directory = MemoryFileStore()
    first = DiskStorage(directory, OPTIONS)
    first.guids.take(1, NOW_NS)
    run_sync(first)
    ticks = []
    for _ in range(2):  # the second process is killed before a sync
        directory = directory.kill()
        storage = DiskStorage(directory, OPTIONS)
        storage.open(NOW_NS)
        storage.guids.take(1, NOW_NS)
        ticks.append(storage.guids.tick)
        assert not storage.wants_sync
    assert first.guids.reserved_tick < ticks[0] < ticks[1]


def test_mark_that_cannot_be_written_at_the_start_is_written_later():
    directory = MemoryFileStore()
    first = DiskStorage(directory, OPTIONS)
    first.guids.take(1, NOW_NS)
    run_sync(first)
    storage = DiskStorage(directory, OPTIONS)
    directory.fail(errno.ENOSPC, after=2)
    storage.open(NOW_NS)
    assert storage.take_reports() == ["nsqkit.ids.dat cannot be written: No space left on device"]
    directory.recover()
    assert storage.sync_deadline(NOW_NS) == NOW_NS + 5
    storage.handle_deadline(NOW_NS + 5)
    run_sync(storage)
    again = DiskStorage(directory, OPTIONS)
    again.open(NOW_NS)
    assert again.guids.used_tick == storage.guids.reserved_tick


@pytest.mark.parametrize("kind", [DiskStorage, DurableStorage])
@pytest.mark.parametrize("behind", [True, False])
def test_mark_that_cannot_be_written_is_reported_once_and_repeated(kind: type[DiskStorage], behind: bool):
    """Also with a clock behind the ids: they are then all of one tick, until 4096 have been given."""
    directory = MemoryFileStore()
    storage = kind(directory, OPTIONS)
    if behind:
        storage.guids.used_tick = NOW_NS + 3600 * 10**9 >> 20
    storage.guids.take(1, NOW_NS)
    directory.fail(errno.ENOSPC)
    for now_ns in (NOW_NS, NOW_NS + 5, NOW_NS + 10):
        assert storage.wants_sync
        run_sync(storage)
        assert not storage.wants_sync, "not before the deadline, or the disk would be tried without a pause"
        storage.guids.take(1, now_ns)
        assert storage.sync_deadline(now_ns) == now_ns + 5
        storage.handle_deadline(now_ns + 5)
    assert storage.take_reports() == ["nsqkit.ids.dat cannot be written: No space left on device"]
    directory.recover()
    run_sync(storage)
    assert not storage.wants_sync
    again = kind(directory.kill(), OPTIONS)
    again.open(NOW_NS)
    assert again.guids.used_tick == storage.guids.reserved_tick


def test_deleted_or_emptied_queue_is_not_synced():
    directory = MemoryFileStore()
    storage = DiskStorage(directory, OPTIONS)
    deleted, emptied = (storage.open_queue(name, ephemeral=False) for name in (b"t", b"u"))
    deleted.put([FRAME] * 3)
    emptied.put([FRAME] * 3)
    storage.handle_deadline(NOW_NS)
    deleted.delete()
    emptied.empty()
    assert storage.sync_deadline(NOW_NS) is None
    storage.handle_deadline(NOW_NS)
    run_sync(storage)
    assert directory.files == {}


def test_memory_storage_keeps_messages_behind_the_limit():
    storage = MemoryStorage(1)
    queue = storage.open_queue(b"t", ephemeral=False)
    assert (queue.put([FRAME] * 3), len(queue), len(queue.backend)) == (3, 3, 2)


def test_the_last_write_decides_the_health(tmp_path):
    storage = make(tmp_path / "there")
    queue = storage.open_queue(b"t", ephemeral=False)
    with pytest.raises(OSError, match="No such file or directory"):
        queue.put([FRAME] * 2)
    assert storage.health.startswith("NOK - No such file or directory: ")
    tmp_path.joinpath("there").mkdir()
    queue.put([FRAME] * 2)
    assert storage.health == "OK"


def test_commit_syncs_each_file_once():
    directory = MemoryFileStore()
    storage = DurableStorage(directory, OPTIONS)
    queue = storage.open_queue(b"t", ephemeral=False)
    assert isinstance(queue, KeptQueue)
    queue.put([FRAME])
    assert len(run_sync(storage).plans) == 1
    assert run_sync(storage).plans == []
    assert directory.files["t.diskqueue.meta.dat"] == b"0\n0,0\n0,0\n", "positions are not due"
    found = DurableStorage(directory.power_cut(Random(1)), OPTIONS)
    assert len(found.open_queue(b"t", ephemeral=False)) == 1


def test_commit_that_fails_is_repeated_with_all_its_queues():
    directory = MemoryFileStore()
    storage = DurableStorage(directory, OPTIONS)
    for name in (b"t", b"u"):
        storage.open_queue(name, ephemeral=False).put([FRAME])
    directory.fail(errno.EIO, times=1)
    batch = run_sync(storage)
    assert storage.take_reports() == [], "the commit is reported, not each of its queues"
    assert [str(plan.error) for plan in batch.plans] == ["[Errno 5] Input/output error"] * 2
    assert len(run_sync(storage).plans) == 2


def test_queue_forgets_no_message_before_it_is_safe_and_named_elsewhere():
    directory = MemoryFileStore()
    storage = DurableStorage(directory, OPTIONS)
    first, second = (storage.open_queue(name, ephemeral=False) for name in (b"t", b"t:c"))
    first.put([FRAME])
    storage.handle_deadline(NOW_NS)
    run_sync(storage)
    second.put(first.take(1, 1 << 20))
    first.finish([FRAME])
    storage.handle_deadline(NOW_NS)
    run_sync(storage, names_are_saved=False)
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"1")
    assert storage.sync_deadline(NOW_NS) == NOW_NS + 5
    storage.handle_deadline(NOW_NS)
    directory.fail(errno.EIO, times=1)
    run_sync(storage)
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"1")
    storage.handle_deadline(NOW_NS)
    run_sync(storage)
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"0")
    for seed in range(20):
        found = DurableStorage(directory.power_cut(Random(seed)), OPTIONS)
        assert len(found.open_queue(b"t:c", ephemeral=False)) == 1


@pytest.mark.parametrize("kind", [DiskStorage, DurableStorage])
def test_gave_all_is_false_with_messages_of_an_earlier_run(kind):
    directory = MemoryFileStore()
    storage = kind(directory, OPTIONS)
    queue = storage.open_queue(b"t", ephemeral=False)
    queue.put([FRAME])
    assert storage.guids.gave_all
    queue.close()
    storage = kind(directory, OPTIONS)
    storage.open_queue(b"t:c", ephemeral=False)
    assert storage.guids.gave_all
    storage.open_queue(b"t", ephemeral=False)
    storage.open_queue(b"t:d", ephemeral=False)
    assert not storage.guids.gave_all
