"""A queue on disk that keeps each message until it is finished."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.durable_queue import DurableQueue, KeptQueue
from nsqkit.broker.core.disk.positions import Position, meta_name, to_meta
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, ID, encode_message, id_of
from tests.broker.core.disk.disks import MemoryFileStore, new_state

LIMITS = BrokerOptions(max_bytes_per_file=200, max_msg_size=100, sync_every=3)


def frame(number: int) -> bytes:
    return encode_message(number, 1, b"%016x" % number, b"body %d" % number)


def numbers(frames: list[bytes]) -> list[int]:
    return [int(each[FRAME_HEADER_LENGTH:].removeprefix(b"body ")) for each in frames]


def opened(path: Path | str) -> DurableQueue:
    return DurableQueue(DirectoryFileStore(str(path)), "t", LIMITS, new_state())


def settle(queue: DurableQueue) -> None:
    """Do what the storage does when a sync is due."""
    queue.sync()


def test_full_disk_empties():
    directory = MemoryFileStore()
    queue = DurableQueue(directory, "t", LIMITS, new_state())
    queue.put([frame(n) for n in range(40)])
    queue.sync()
    queue.finish([each[ID] for each in queue.take(40)])
    directory.capacity = sum(map(len, directory.files.values()))
    with pytest.raises(OSError, match="No space left"):
        queue.put([frame(n) for n in range(40, 50)])
    for _ in range(3):
        queue.sync()
    assert len(directory.files) <= 3
    queue.put([frame(50)])
    directory.recover()
    queue.sync()
    after = DurableQueue(directory.power_cut(Random(1)), "t", LIMITS, new_state())
    assert numbers(after.take(50)) == [50]


def test_unfinished_messages_are_read_again_after_a_kill(tmp_path):
    queue = opened(tmp_path)
    queue.put([frame(n) for n in range(5)])
    assert numbers(queue.take(4)) == [0, 1, 2, 3]
    queue.finish([frame(n)[ID] for n in (0, 1, 3)])
    settle(queue)
    again = opened(tmp_path)
    assert len(again) == 3
    assert numbers(again.take(10)) == [2, 3, 4]  # 3 lies behind an unfinished message


def test_file_is_kept_until_its_messages_are_finished(tmp_path):
    queue = opened(tmp_path)
    queue.put([frame(n) for n in range(10)])
    files = sorted(path.name for path in tmp_path.glob("t.diskqueue.0*"))
    assert len(files) > 1
    queue.take(10)
    settle(queue)
    assert sorted(path.name for path in tmp_path.glob("t.diskqueue.0*")) == files
    queue.finish([frame(n)[ID] for n in range(10)])
    settle(queue)
    assert sorted(path.name for path in tmp_path.glob("t.diskqueue.0*")) == files[-1:]


def test_take_skips_messages_put_aside(tmp_path):
    durable = opened(tmp_path)
    queue = KeptQueue(durable)
    queue.put([frame(0)])
    queue.put_aside([frame(1), frame(2)])
    queue.put([frame(3)])
    assert len(queue) == 2
    assert numbers(queue.take(10, 1 << 20)) == [0, 3]
    queue.finish([frame(0), frame(2), frame(3)])
    settle(durable)
    assert numbers(opened(tmp_path).take(10)) == [1, 2, 3]


def test_finished_messages_put_aside_are_dropped_without_a_take(tmp_path):
    queue = opened(tmp_path)
    for n in range(0, 100, 2):
        queue.put_aside([frame(n), frame(n + 1)])
        queue.finish([frame(n)[ID], frame(n + 1)[ID]])
        settle(queue)
    assert len(list(tmp_path.glob("t.diskqueue.0*"))) <= 2
    assert numbers(opened(tmp_path).take(10)) == []


def test_one_sync_passes_all_files_of_finished_messages_put_aside(tmp_path):
    queue = opened(tmp_path)
    queue.put_aside([frame(n) for n in range(100)])
    queue.finish([frame(n)[ID] for n in range(100)])
    settle(queue)
    assert len(list(tmp_path.glob("t.diskqueue.0*"))) <= 1


def test_finished_message_put_aside_that_cannot_be_read_now_is_dropped_by_the_next_sync():
    store = MemoryFileStore()
    queue = DurableQueue(store, "t", LIMITS, new_state())
    queue.put_aside([frame(0)])
    queue.finish([frame(0)[ID]])
    store.fail(errno.EIO, times=1)
    settle(queue)
    assert queue.needs_sync
    settle(queue)
    assert not queue.needs_sync
    assert numbers(DurableQueue(store.kill(), "t", LIMITS, new_state()).take(10)) == []


def spoil(store: MemoryFileStore, name: str, how: str) -> None:
    """Remove a file, or write over its first record."""
    if how == "removed":
        store.remove(name)
    else:
        file = store.open(name)
        file.write_at(0, b"\xff" * 20)
        file.close()


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_finished_message_put_aside_whose_file_cannot_be_read_is_dropped_by_the_next_sync(how):
    store = MemoryFileStore()
    queue = DurableQueue(store, "t", LIMITS, new_state())
    queue.put_aside([frame(n) for n in range(10)])
    spoil(store, "t.diskqueue.000000.dat", how)
    queue.finish([frame(n)[ID] for n in range(10)])
    settle(queue)
    settle(queue)
    assert not queue.needs_sync
    assert len(queue) == 0
    queue.put([frame(10)])
    assert numbers(queue.take(10)) == [10]


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_close_writes_the_held_messages_if_a_file_of_messages_put_aside_cannot_be_read(how):
    store = MemoryFileStore()
    queue = KeptQueue(DurableQueue(store, "t", LIMITS, new_state()))
    queue.put([frame(n) for n in range(10)])
    held = queue.take(10, 1 << 20)
    begun = sorted(store.files)
    queue.put_aside([frame(n) for n in range(10, 20)])
    queue.put([frame(20)])
    name = next(name for name in sorted(store.files) if name not in begun)
    spoil(store, name, how)
    queue.finish([frame(n) for n in range(10, 20)])
    queue.close(held)
    again = KeptQueue(DurableQueue(store.kill(), "t", LIMITS, new_state()))
    assert sorted(numbers(again.take(30, 1 << 20))) == [*range(10), 20]


def test_messages_that_a_start_could_not_count_are_found_beside_one_put_aside():
    store = MemoryFileStore()
    queue = DurableQueue(store, "t", LIMITS, new_state())
    queue.put([frame(n) for n in range(3)])
    settle(queue)
    store.replace(meta_name("t"), to_meta(0, Position(), Position(0, store.open("t.diskqueue.000000.dat").size())))
    queue = DurableQueue(store.kill(), "t", LIMITS, new_state())
    queue.put_aside([frame(3)])
    assert numbers(queue.take(1)) == [0]
    assert len(queue) == 1
    queue.finish([frame(3)[ID]])
    settle(queue)  # which passes finished messages if no others are left
    assert numbers(queue.take(10)) == [1, 2]
    assert len(queue) == 0


def test_depth_of_messages_put_since_a_start_is_exact():
    store = MemoryFileStore()
    DurableQueue(store, "t", LIMITS, new_state()).close([frame(0), frame(1)])
    end = Position(0, store.open("t.diskqueue.000000.dat").size())
    store.replace(meta_name("t"), to_meta(70, Position(), end))
    queue = DurableQueue(store.kill(), "t", LIMITS, new_state())
    queue.put([frame(2), frame(3), frame(4)])
    assert len(queue) == 73
    assert numbers(queue.take(2)) == [0, 1]
    assert numbers(queue.take(1)) == [2]
    assert len(queue) == 2


def test_depth_is_0_at_the_end_of_files_that_have_become_shorter():
    store = MemoryFileStore()
    queue = DurableQueue(store, "t", LIMITS, new_state())
    queue.put([frame(n) for n in range(10)])
    file = store.open("t.diskqueue.000000.dat")
    file.truncate(0)
    taken = numbers(queue.take(10))
    assert taken == [*range(10 - len(taken), 10)]
    assert queue.take(10) == []
    assert len(queue) == 0


def test_finished_messages_put_aside_do_not_survive_a_close(tmp_path):
    queue = KeptQueue(opened(tmp_path))
    queue.put_aside([frame(0), frame(1), frame(2)])
    queue.finish([frame(0), frame(2)])
    queue.close([], [frame(1)])
    assert numbers(opened(tmp_path).take(10)) == [1]


def test_message_put_back_is_not_written_again(tmp_path):
    queue = KeptQueue(opened(tmp_path))
    queue.put([frame(0), frame(1)])
    queue.put_back(queue.take(1, 1 << 20))
    assert numbers(queue.take(1, 1 << 20)) == [0]
    assert numbers(opened(tmp_path).take(10)) == [0, 1]


def test_close_keeps_the_unfinished_messages_alone(tmp_path):
    queue = KeptQueue(opened(tmp_path))
    queue.put([frame(n) for n in range(4)])
    first, second, third = queue.take(3, 1 << 20)
    queue.finish([second])
    queue.put_back([first])
    queue.close([third])
    assert sorted(numbers(opened(tmp_path).take(10))) == [0, 2, 3]


def test_finished_messages_put_aside_behind_others_do_not_survive_a_close(tmp_path):
    queue = KeptQueue(opened(tmp_path))
    queue.put([frame(n) for n in range(8)])
    queue.put_aside([frame(8), frame(9)])
    queue.put([frame(10)])
    queue.put_aside([frame(11)])
    queue.put([frame(12)])
    held = queue.take(2, 1 << 20)
    queue.finish([frame(8), frame(11)])
    queue.close([*held, frame(9)])
    again = KeptQueue(opened(tmp_path))
    assert sorted(numbers(again.take(20, 1 << 20))) == [*range(8), 9, 10, 12]
    assert len(again) == 0


def test_close_that_cannot_write_loses_no_message_in_front_of_finished_ones():
    directory = MemoryFileStore()
    queue = KeptQueue(DurableQueue(directory, "t", LIMITS, new_state()))
    queue.put([frame(n) for n in range(8)])
    queue.put_aside([frame(8)])
    queue.finish([frame(8)])
    directory.capacity = sum(map(len, directory.files.values()))
    with pytest.raises(OSError, match="No space left"):
        queue.close()
    directory.recover()
    again = KeptQueue(DurableQueue(directory.kill(), "t", LIMITS, new_state()))
    assert set(numbers(again.take(20, 1 << 20))) >= {*range(8)}


def same_id(number: int, other: int) -> bytes:
    """Return the message of a number with the id of another one, as after a clock was set back."""
    return encode_message(number, 1, b"%016x" % other, b"body %d" % number)


def test_message_is_not_taken_for_a_later_one_put_aside_with_its_id(tmp_path):
    queue = opened(tmp_path)
    queue.put([frame(0)])
    queue.put_aside([same_id(1, 0)])
    queue.finish([frame(0)[ID]])
    assert len(queue) == 1
    assert numbers(queue.messages()) == [0]
    taken = queue.take(10)
    assert numbers(taken) == [0]
    settle(queue)
    assert numbers(opened(tmp_path).take(10)) == [0, 1]
    queue.finish(map(id_of, taken))
    settle(queue)
    assert numbers(opened(tmp_path).take(10)) == []


def test_damaged_message_put_aside_hides_no_other_one():
    store = MemoryFileStore()
    queue = DurableQueue(store, "t", LIMITS, new_state())
    queue.put_aside([frame(0)])
    queue.put([frame(1)])
    file = store.open("t.diskqueue.000000.dat")
    file.write_at(20, b"!")  # in the id
    file.close()
    queue.finish([frame(0)[ID]])
    assert numbers(queue.take(1)) == [0]
    settle(queue)
    assert len(queue) == 1
    assert numbers(queue.take(1)) == [1]


def test_message_put_aside_has_another_id_than_an_unfinished_one(tmp_path):
    queue = opened(tmp_path)
    queue.put([frame(0)])
    queue.take(10)
    (aside,) = queue.put_aside([same_id(1, 0)])
    (again,) = queue.put_aside([same_id(2, 0)])
    assert len({frame(0)[ID], id_of(aside), id_of(again)}) == 3
    queue.finish([id_of(aside), id_of(again)])
    assert queue.take(10) == []
    settle(queue)
    assert numbers(opened(tmp_path).take(10)) == [0, 1, 2]  # those behind it, too
    queue.finish([frame(0)[ID]])
    settle(queue)
    assert numbers(opened(tmp_path).take(10)) == []


def test_new_id_is_not_that_of_an_unfinished_message(tmp_path):
    queue = opened(tmp_path)
    first = new_state().guids.renew(frame(0))  # with the first id that the queue gives
    queue.put([first, frame(1), same_id(2, 1)])
    taken = queue.take(10)
    assert len({id_of(each) for each in taken}) == 3


def test_close_writes_no_message_put_aside_twice(tmp_path):
    queue = KeptQueue(opened(tmp_path))
    queue.put_aside([frame(0)])
    queue.put([frame(1)])
    queue.put_aside([frame(2)])
    (held,) = queue.take(1, 1 << 20)  # behind the message that was put aside first
    queue.close([held], [frame(0), frame(2)])
    assert sorted(numbers(opened(tmp_path).take(10))) == [0, 1, 2]


def test_deleted_durable_queue_leaves_no_files(tmp_path):
    queue = opened(tmp_path)
    queue.put([frame(n) for n in range(10)])
    queue.take(8)
    queue.delete()
    assert list(tmp_path.iterdir()) == []


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "aside", "take", "finish", "sync", "settle", "kill"]), st.integers(1, 5))
    )
)
def test_unfinished_messages_survive_any_kill(steps):
    """After any steps and a kill, all unfinished messages of a model are found."""
    with tempfile.TemporaryDirectory() as path:
        queue, put = opened(path), 0
        unfinished: set[int] = set()
        held: list[int] = []
        for step, count in steps:
            if step == "put":
                queue.put([frame(n) for n in range(put, put + count)])
                unfinished.update(range(put, put + count))
                put += count
            elif step == "aside":
                queue.put_aside([frame(n) for n in range(put, put + count)])
                unfinished.update(range(put, put + count))
                held += range(put, put + count)
                put += count
            elif step == "take":
                held += numbers(queue.take(count))
            elif step == "finish":
                done, held = held[:count], held[count:]
                queue.finish([frame(n)[ID] for n in done])
                unfinished.difference_update(done)
            elif step == "sync":
                queue.sync()
            elif step == "settle":
                settle(queue)
            else:
                queue, held = opened(path), []
        found = numbers(opened(path).take(1000))
        assert unfinished <= set(found)
        assert len(found) == len(set(found))


# Files in memory: power cuts and errors.


def on(directory: MemoryFileStore) -> DurableQueue:
    return DurableQueue(directory, "t", LIMITS, new_state())


def ids(*given: int) -> list[bytes]:
    return [frame(number)[ID] for number in given]


def test_finished_messages_are_kept_until_a_sync_has_ended():
    """They may have gone to another queue, and not be synced there."""
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(3)])
    queue.take(3)
    queue.finish(ids(0, 1, 2))
    queue.put([frame(n) for n in range(3, 10)])
    plan = queue.begin_sync()
    queue.finish(ids(0, 1, 2))
    assert numbers(on(directory.kill()).take(99)) == [*range(10)]
    plan.sync_data()
    plan.write_positions(directory)
    plan.rename_positions(directory)
    plan.error = OSError("the names could not be synced")
    plan.close()
    queue.end_sync(plan)
    assert len(sizes(directory)) == 2, "no file is removed"
    queue.leave()
    assert numbers(on(directory.kill()).take(99)) == [*range(10)], "the positions are not used further"


def sizes(directory: MemoryFileStore) -> list[int]:
    return [len(data) for name, data in directory.files.items() if "meta" not in name]


def test_duplicate_message_hides_none_between_its_copies():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(0), frame(1), frame(2), frame(0)])
    taken = queue.take(9)
    assert [each[FRAME_HEADER_LENGTH:] for each in taken] == [b"body 0", b"body 1", b"body 2", b"body 0"]
    assert len(set(map(id_of, taken))) == 4, "each is finished by itself"
    settle(queue)
    assert numbers(on(directory.kill()).take(9)[:3]) == [0, 1, 2]
    queue.finish(ids(0))
    settle(queue)
    assert numbers(on(directory.kill()).take(9)) == [1, 2, 0]
    queue.finish(ids(1, 2))
    settle(queue)
    assert numbers(on(directory.kill()).take(9)) == [0]
    queue.finish([id_of(taken[3])])
    settle(queue)
    assert numbers(on(directory.kill()).take(9)) == []


def test_messages_before_a_damaged_place_are_kept():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(6)])
    queue.close()
    name = "t.diskqueue.000000.dat"
    whole = directory.files[name]
    directory = MemoryFileStore({**directory.files, name: whole[: len(whole) - 9]})
    queue = on(directory)
    found = numbers(queue.take(99))
    assert found[:3] == [0, 1, 2]
    assert found[-1] == 5
    assert len(found) == 5
    settle(queue)
    assert numbers(on(directory.power_cut(Random(0))).take(99)) == found
    assert f"{name}.bad" in directory.files


def test_file_that_cannot_be_repaired_is_reported():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(6)])
    queue.close()
    name = "t.diskqueue.000000.dat"
    notes = new_state()
    queue = DurableQueue(directory, "t", LIMITS, notes)
    directory.fail(errno.EIO)
    queue._give_up(name, 10)
    assert notes.reports == [f"{name} cannot be repaired: Input/output error"]


def test_commit_syncs_files_completed_since_the_last_one():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(10)])
    plan = queue.begin_sync(with_positions=False)
    plan.error = OSError("no sync")
    plan.close()
    queue.end_sync(plan)
    plan = queue.begin_sync(with_positions=False)
    plan.sync_data()
    assert plan.error is None
    directory.sync()
    assert numbers(on(directory.power_cut(Random(1))).take(99)) == [*range(10)]
    plan.close()
    queue.end_sync(plan)
    queue.close()
    assert directory.open_count == 0


def test_empty_drops_all_messages_despite_an_error():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(20)])
    queue.take(10)
    directory.fail(errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        queue.empty()
    assert len(queue) == 0
    queue.put([frame(20)])
    settle(queue)
    assert numbers(on(directory.kill()).take(99)) == [20]


def test_commit_covers_the_positions_after_files_could_not_be_removed():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(20)])
    settle(queue)
    directory.fail(errno.EIO, after=1, times=100)
    with pytest.raises(OSError, match="Input/output"):
        queue.empty()
    directory.recover()
    queue.put([frame(20)])
    queue.sync_data()
    directory.sync()
    assert numbers(on(directory.power_cut(Random(1), in_order=True)).take(99)) == [20]


def test_close_writes_positions_after_the_messages():
    directory = MemoryFileStore()
    queue = on(directory)
    queue.put([frame(n) for n in range(3)])
    held = queue.take(3)
    directory.fail(errno.EIO, after=1, times=1)  # the write goes well, and the sync does not
    with pytest.raises(OSError, match="Input/output"):
        queue.close(held)
    assert set(numbers(on(directory.power_cut(Random(1), in_order=True)).take(99))) <= {0, 1, 2}
    assert numbers(on(directory.kill()).take(99))[:3] == [0, 1, 2]
