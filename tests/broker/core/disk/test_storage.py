from __future__ import annotations

import errno
from random import Random

import pytest

from nsqkit.broker.core.disk.durable_queue import KeptQueue
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage, MemoryStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore

NOW_NS = 1_700_000_000 * 10**9
FRAME = encode_message(NOW_NS, 1, b"0" * 16, b"body")
OPTIONS = BrokerOptions(mem_queue_size=1, sync_timeout_ns=5)


def make(path, kind=DiskStorage):
    return kind(DirectoryFileStore(str(path)), OPTIONS, pytest.fail)


def test_memory_holds_what_it_may_and_the_files_the_rest(tmp_path):
    queue = make(tmp_path).open_queue(b"t", ephemeral=False)
    assert queue.put([FRAME] * 3) == 1
    assert (len(queue), len(queue.backend)) == (3, 2)
    assert tmp_path.joinpath("t.diskqueue.000000.dat").exists()


@pytest.mark.parametrize("storage", [MemoryStorage(1), None])
def test_an_ephemeral_queue_drops_the_rest(tmp_path, storage):
    queue = (storage or make(tmp_path)).open_queue(b"t#ephemeral", ephemeral=True)
    queue.put([FRAME] * 3)
    assert len(queue) == 1
    assert list(tmp_path.iterdir()) == []


def test_positions_are_written_when_their_time_has_come(tmp_path):
    storage = make(tmp_path)
    assert storage.sync_deadline(NOW_NS) is None
    storage.open_queue(b"t", ephemeral=False).put([FRAME] * 3)
    assert storage.sync_deadline(NOW_NS) == NOW_NS + 5
    assert storage.handle_deadline(NOW_NS + 5) is None
    assert tmp_path.joinpath("t.diskqueue.meta.dat").read_text().startswith("2\n0,0\n0,")
    assert storage.sync_deadline(NOW_NS) is None


def synced(directory: MemoryFileStore) -> list[str]:
    return [
        name.removesuffix(".diskqueue.meta.dat") for name, data in directory.files.items() if data[:1] == b"2"
    ]


def filled(count: int) -> tuple[DiskStorage, MemoryFileStore, list[str]]:
    """Make queues with two messages each on disk, of which the positions do not tell yet."""
    directory, reports = MemoryFileStore(), list[str]()
    storage = DiskStorage(directory, OPTIONS, reports.append)
    for number in range(count):
        storage.open_queue(b"t%d" % number, ephemeral=False).put([FRAME] * 3)
    return storage, directory, reports


def test_many_queues_are_synced_a_few_at_a_time():
    storage, directory, _ = filled(20)
    assert storage.handle_deadline(NOW_NS) == NOW_NS + 1_000_000
    assert len(synced(directory)) == 8
    storage.handle_deadline(NOW_NS)
    assert storage.handle_deadline(NOW_NS) is None
    assert len(synced(directory)) == 20


def test_a_sync_that_fails_is_tried_again_when_the_next_time_has_come_and_not_at_once():
    storage, directory, reports = filled(2)
    directory.fail(errno.EIO)
    assert storage.handle_deadline(NOW_NS) == NOW_NS + 5
    assert len(reports) == 2
    directory.recover()
    assert storage.handle_deadline(NOW_NS + 5) is None
    assert synced(directory) == ["t0", "t1"]


def test_a_queue_that_was_deleted_or_emptied_is_not_synced():
    directory = MemoryFileStore()
    storage = DiskStorage(directory, OPTIONS, pytest.fail)
    deleted, emptied = (storage.open_queue(name, ephemeral=False) for name in (b"t", b"u"))
    deleted.put([FRAME] * 3)
    emptied.put([FRAME] * 3)
    deleted.delete()
    emptied.empty()
    assert storage.handle_deadline(NOW_NS) is None
    assert directory.files == {}


def test_what_a_queue_has_synced_by_itself_is_not_synced_again():
    storage, directory, _ = filled(1)
    (queue,) = storage.unsynced
    queue.sync()
    count = directory.sync_count
    assert storage.handle_deadline(NOW_NS) is None
    assert directory.sync_count == count


def test_memory_is_never_synced():
    storage = MemoryStorage(1)
    queue = storage.open_queue(b"t", ephemeral=False)
    assert (queue.put([FRAME] * 3), len(queue), len(queue.backend)) == (3, 3, 2)
    assert storage.sync_deadline(NOW_NS) is storage.handle_deadline(NOW_NS) is None


def test_the_last_write_decides_the_health(tmp_path):
    storage = make(tmp_path / "there")
    queue = storage.open_queue(b"t", ephemeral=False)
    with pytest.raises(FileNotFoundError):
        queue.put([FRAME] * 2)
    assert storage.health.startswith("NOK - No such file or directory: ")
    tmp_path.joinpath("there").mkdir()
    queue.put([FRAME] * 2)
    assert storage.health == "OK"


def test_a_durable_storage_names_the_files_to_sync_once(tmp_path):
    storage = make(tmp_path, DurableStorage)
    queue = storage.open_queue(b"t", ephemeral=False)
    assert isinstance(queue, KeptQueue)
    queue.put([FRAME])
    (file,) = storage.files_to_sync()
    assert file.size() == len(FRAME) - 4
    file.close()
    assert storage.files_to_sync() == []


def test_a_queue_forgets_nothing_before_it_is_safe_and_named_elsewhere():
    directory = MemoryFileStore()
    storage = DurableStorage(directory, OPTIONS, pytest.fail)
    first, second = (storage.open_queue(name, ephemeral=False) for name in (b"t", b"t:c"))
    first.put([FRAME])
    storage.handle_deadline(NOW_NS)
    second.put(first.take(1, 1 << 20))
    first.finish([FRAME])
    storage.names_are_saved = lambda: False
    assert storage.handle_deadline(NOW_NS) == NOW_NS + 5
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"1")
    storage.names_are_saved = lambda: True
    directory.fail(errno.EIO, times=1)
    assert storage.handle_deadline(NOW_NS) == NOW_NS + 5
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"1")
    assert storage.handle_deadline(NOW_NS) is None
    assert directory.files["t.diskqueue.meta.dat"].startswith(b"0")
    for seed in range(20):
        found = DurableStorage(directory.power_cut(Random(seed)), OPTIONS, pytest.fail)
        assert len(found.open_queue(b"t:c", ephemeral=False)) == 1


def test_files_that_cannot_all_be_had_are_given_up():
    directory = MemoryFileStore()
    storage = DurableStorage(directory, OPTIONS, pytest.fail)
    for name in (b"t", b"u"):
        storage.open_queue(name, ephemeral=False).put([FRAME])
    count = directory.open_count
    directory.fail(errno.EMFILE, after=1)
    with pytest.raises(OSError, match="Too many open files"):
        storage.files_to_sync()
    assert directory.open_count == count


@pytest.mark.parametrize("kind", [DiskStorage, DurableStorage])
def test_it_is_known_whether_there_are_messages_of_an_earlier_life(kind):
    directory = MemoryFileStore()
    storage = kind(directory, OPTIONS, pytest.fail)
    queue = storage.open_queue(b"t", ephemeral=False)
    queue.put([FRAME])
    assert storage.guids.gave_all
    queue.close()
    storage = kind(directory, OPTIONS, pytest.fail)
    storage.open_queue(b"t:c", ephemeral=False)
    assert storage.guids.gave_all
    storage.open_queue(b"t", ephemeral=False)
    storage.open_queue(b"t:d", ephemeral=False)
    assert not storage.guids.gave_all
