"""The queue on disk: nsqd's files, also after a kill, a power cut, or an error of the disk."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqkit.broker.core.disk.disk_queue import UNSYNCED_FILES_MAX, DiskQueue
from nsqkit.broker.core.disk.positions import FILE_NUMBER_MAX, NUMBER_MAX
from nsqkit.broker.core.disk.records import from_records, to_records
from nsqkit.broker.core.disk.sync import SyncPlan
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import Ended, MemoryFileStore, new_state

META = "q.diskqueue.meta.dat"
RECORD = 50
LIMITS = BrokerOptions(max_bytes_per_file=3 * RECORD, max_msg_size=1000, sync_every=100)


def frames(*numbers: int, size: int = RECORD) -> list[bytes]:
    """Make messages of which each has a record of ``size`` bytes."""
    return [encode_message(number, 1, b"%016d" % number, (b"%d" % number).ljust(size - 30, b".")) for number in numbers]


def records(*numbers: int) -> bytes:
    return to_records(frames(*numbers))


def data_name(number: int) -> str:
    return f"q.diskqueue.{number:06d}.dat"


def opened(directory: MemoryFileStore, limits: BrokerOptions = LIMITS) -> DiskQueue:
    return DiskQueue(directory, "q", limits, new_state())


def left(queue: DiskQueue) -> list[bytes]:
    """Take all that is left."""
    found: list[bytes] = []
    while len(queue):
        found += queue.take(1000)
    return found


def sizes(directory: MemoryFileStore) -> dict[str, int]:
    """Return the sizes of the data files, by their names without ``q.diskqueue.``."""
    return {name.removeprefix("q.diskqueue."): len(data) for name, data in directory.files.items() if name != META}


def meta(directory: MemoryFileStore) -> str:
    return directory.files[META].decode().replace("\n", "|")


# The files, as nsqd has them.


def test_new_queue_has_no_files():
    directory = MemoryFileStore()
    queue = opened(directory)
    assert (len(queue), queue.take(5), directory.files) == (0, [], {})


def test_put_writes_messages_and_sync_writes_positions():
    directory = MemoryFileStore()
    queue = opened(directory)
    assert queue.put(frames(1, 2)) == 0
    assert directory.files == {data_name(0): records(1, 2), META: b"0\n0,0\n0,0\n"}
    queue.sync()
    assert meta(directory) == "2|0,0|0,100|"
    assert queue.take(1) == frames(1)
    queue.close()
    assert meta(directory) == "1|0,50|0,100|"
    assert directory.open_count == 0


def test_next_file_begins_before_the_limit_is_exceeded():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3, 4))
    assert sizes(directory) == {"000000.dat": 150, "000001.dat": 50}
    queue.put(frames(5, 6, 7, 8, 9, 10, 11))
    assert sizes(directory) == {"000000.dat": 150, "000001.dat": 150, "000002.dat": 150, "000003.dat": 100}
    assert left(queue) == frames(*range(1, 12))
    assert len(sizes(directory)) == 4, "files are removed by the next sync"
    queue.sync()
    assert sizes(directory) == {"000003.dat": 100}
    assert meta(directory) == "0|3,100|3,100|"


def test_record_longer_than_the_limit_gets_its_own_file():
    directory = MemoryFileStore()
    queue = opened(directory)
    long = frames(2, size=400)
    queue.put(frames(1) + long + frames(3))
    assert sizes(directory) == {"000000.dat": 50, "000001.dat": 400, "000002.dat": 50}
    queue.put(long)
    assert left(queue) == frames(1) + long + frames(3) + long


def test_message_longer_than_the_read_size_is_read():
    limits = BrokerOptions(max_bytes_per_file=1 << 30, max_msg_size=1 << 20, sync_every=100)
    queue = opened(MemoryFileStore(), limits)
    messages = [*frames(1), *frames(2, size=700_000), *frames(3), *frames(4, size=300_000), *frames(5)]
    queue.put(messages)
    assert [queue.take(1) for _ in messages] == [[message] for message in messages]


def test_complete_file_that_has_been_read_is_removed():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3))
    assert queue.take(9) == frames(1, 2, 3)
    assert sizes(directory) == {"000000.dat": 150}
    queue.put(frames(4))
    queue.sync()
    assert sizes(directory) == {"000001.dat": 50}
    assert meta(directory) == "1|1,0|1,50|", "nsqd takes a position at the end of a complete file for damaged"
    assert left(queue) == frames(4)


def killed_before_removal() -> MemoryFileStore:
    """Return the files of a queue that has read two files, and was killed when the positions were on disk."""
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(7)))
    assert queue.take(7) == frames(*range(7))
    plan = queue.begin_sync()
    plan.sync_data()
    plan.write_positions(directory)
    plan.rename_positions(directory)
    assert sizes(directory) == {"000000.dat": 150, "000001.dat": 150, "000002.dat": 50}
    return directory.kill()


def test_files_that_a_killed_process_had_read_are_removed_by_the_next_sync():
    directory = killed_before_removal()
    queue = opened(directory)
    assert queue.needs_sync
    queue.sync()
    assert sizes(directory) == {"000002.dat": 50}
    assert not opened(directory).needs_sync


def test_files_that_a_killed_process_had_read_are_removed_with_the_queue():
    directory = killed_before_removal()
    opened(directory).delete()
    assert directory.files == {}


@pytest.mark.parametrize("count", range(5))
def test_messages_that_are_not_found_after_a_kill_in_a_removal_do_not_come_back(count):
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(10)))
    assert len(sizes(directory)) == 4
    directory.end_after(count)
    with suppress(Ended):
        queue.delete()
    directory = directory.kill()
    queue = opened(directory)
    found = queue.messages()
    queue.put(frames(*range(20, 26)))
    queue.close()
    assert left(opened(directory.kill())) == [*found, *frames(*range(20, 26))]


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("count", range(30))
def test_files_of_a_process_that_was_killed_in_a_stop_are_removed_with_the_queue(count, emptied):
    directory = MemoryFileStore()
    queue = opened(directory)
    if emptied:  # its files have other numbers then
        queue.put(frames(*range(4)))
        queue.empty()
    directory.end_after(count)
    with suppress(Ended):
        queue.close(frames(*range(10)))
    directory = directory.kill()
    opened(directory).delete()
    assert [name for name in directory.files if not name.endswith((".tmp", ".bad"))] == []


def test_messages_are_found_after_files_were_removed_and_the_positions_could_not_be(monkeypatch):
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(7)))
    queue.sync()
    queue.put(frames(*range(7, 13)))
    remove = directory.remove

    def remove_data(name: str) -> None:
        if name == META:
            raise OSError(errno.EIO, "Input/output error")
        remove(name)

    monkeypatch.setattr(directory, "remove", remove_data)
    with pytest.raises(OSError, match="Input/output error"):
        queue.empty()
    queue.put(frames(*range(20, 24)))
    assert sizes(directory) == {"000005.dat": 150, "000006.dat": 50}
    assert left(opened(directory.kill())) == frames(*range(20, 24))


def test_messages_are_found_after_some_files_and_the_positions_could_not_be_removed():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(12)))
    queue.sync()
    directory.fail(errno.EIO, after=1, times=100)  # the newest file is removed
    with pytest.raises(OSError, match="Input/output error"):
        queue.empty()
    with pytest.raises(OSError, match="Input/output error"):
        queue.put(frames(20))
    directory.recover()
    queue.put(frames(21, 22))
    assert left(opened(directory.kill())) == frames(21, 22)


@pytest.mark.parametrize("has_positions", [False, True])
def test_messages_are_found_after_a_full_disk_took_no_positions(has_positions):
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(7)))
    if has_positions:
        queue.sync()
    assert queue.take(7) == frames(*range(7))
    queue.put(frames(*range(10, 20)))
    assert queue.take(9) == frames(*range(10, 19))
    directory.capacity = sum(map(len, directory.files.values()))
    queue.sync()
    assert sizes(directory) == {"000005.dat": 100}
    assert left(opened(directory.kill())) == frames(18, 19)


def test_sync_is_requested_after_sync_every_messages():
    state = new_state()
    limits = attrs.evolve(LIMITS, max_bytes_per_file=10_000, sync_every=5)
    queue = DiskQueue(MemoryFileStore(), "q", limits, state)
    queue.put(frames(1, 2))
    queue.take(2)
    assert (list(state.unsynced), list(state.due), state.has_news) == ([queue], [], False)
    queue.put(frames(3))
    assert (list(state.due), state.has_news, queue.needs_sync) == ([queue], True, True)
    queue.sync()
    assert (state.unsynced, state.due, queue.needs_sync) == ({}, {}, False)


def test_put_and_take_do_not_sync():
    directory = MemoryFileStore()
    queue = opened(directory, attrs.evolve(LIMITS, sync_every=1))
    queue.put(frames(1, 2, 3, 4, 5, 6, 7))
    assert queue.take(9) == frames(1, 2, 3, 4, 5, 6, 7)
    assert directory.sync_count == 0


def test_put_syncs_files_when_too_many_wait_for_a_sync():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(3 * UNSYNCED_FILES_MAX + 1)))
    assert directory.sync_count == UNSYNCED_FILES_MAX
    assert directory.open_count <= UNSYNCED_FILES_MAX


def test_messages_put_during_a_sync_are_left_to_the_next():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1))
    plan = queue.begin_sync()
    queue.put(frames(2, 3, 4))
    finish_sync(queue, plan, directory)
    assert (meta(directory), queue.needs_sync) == ("1|0,0|0,50|", True)
    queue.sync()
    assert (meta(directory), queue.needs_sync) == ("4|0,0|1,50|", False)
    queue.close()
    assert directory.open_count == 0


@pytest.mark.parametrize("has_messages", [False, True])
def test_sync_writes_no_positions_of_a_queue_that_was_emptied_meanwhile(has_messages):
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3, 4))
    plan = queue.begin_sync()
    queue.empty()
    if has_messages:
        queue.put(frames(5))
    expected = directory.files
    finish_sync(queue, plan, directory)
    assert directory.files == expected
    assert left(queue) == frames(5)[: int(has_messages)]
    queue.close()
    assert directory.open_count == 0


def test_topic_that_is_created_again_during_the_sync_of_the_old_one_keeps_its_files():
    directory = MemoryFileStore()
    old = opened(directory)
    old.put(frames(1, 2, 3, 4))
    plan = old.begin_sync()
    old.delete()
    new = opened(directory)
    new.put(frames(5))
    finish_sync(old, plan, directory)
    assert left(opened(directory.kill())) == frames(5)


def finish_sync(queue: DiskQueue, plan: SyncPlan, directory: MemoryFileStore) -> None:
    plan.sync_data()
    plan.write_positions(directory)
    plan.rename_positions(directory)
    plan.sync_names(directory)
    plan.close()
    queue.end_sync(plan)


def test_emptied_queue_continues_with_the_next_file_number():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3, 4))
    queue.take(1)
    queue.empty()
    assert (len(queue), queue.take(9), directory.files, directory.open_count) == (0, [], {}, 0)
    assert not queue.needs_sync, "a sync would make a file again"
    queue.put(frames(5))
    assert directory.files == {data_name(2): records(5), META: b"0\n2,0\n2,0\n"}
    assert left(queue) == frames(5)


def test_deleted_queue_leaves_no_files():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3, 4))
    queue.delete()
    assert (directory.files, queue.needs_sync) == ({}, False)


def test_close_writes_messages_at_the_end():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1))
    queue.close(frames(2, 3, 4))
    assert meta(directory) == "4|0,0|1,50|"
    assert left(opened(directory)) == frames(1, 2, 3, 4)


# Files that another process has left.


@attrs.frozen
class Found:
    """The messages that a queue found in its files, the files it set aside, and its number of reports."""

    messages: list[int]
    bad: dict[str, int]
    depth: int
    reports: int


def find(text: str | None, files: dict[int, bytes]) -> Found:
    directory = MemoryFileStore({data_name(number): data for number, data in files.items()})
    if text is not None:
        directory.replace(META, text.replace("|", "\n").encode())
    notes = new_state()
    queue = DiskQueue(directory, "q", LIMITS, notes)
    depth = len(queue)
    queue.put(frames(90))  # the first put, and the file that it begins, find the same as a read
    found = left(queue)
    queue.put(frames(91))
    found += left(queue)
    queue.close()
    assert sum(1 for name in sizes(directory) if not name.endswith(".bad")) <= 1, "read files are removed"
    assert meta(directory).startswith("0|")
    assert left(opened(directory)) == []
    numbers = [int(frame[18:34]) for frame in found]
    assert numbers[-2:] == [90, 91], "later messages are not lost"
    bad = {name: size for name, size in sizes(directory).items() if name.endswith(".bad")}
    return Found(numbers[:-2], bad, depth, len(notes.reports))


R123, R45 = records(1, 2, 3), records(4, 5)
BAD = {"000000.dat.bad": 150}


LEFT: dict[str, tuple[str | None, dict[int, bytes], Found]] = {
    "as it was closed": ("3|0,0|0,150|", {0: R123}, Found([1, 2, 3], {}, 3, 0)),
    "two files": ("4|0,50|1,100|", {0: R123, 1: R45}, Found([2, 3, 4, 5], {}, 4, 0)),
    "a file from before files were left in time": (
        "5|7,0|8,0|",
        {7: R123 + R45},
        Found([1, 2, 3, 4, 5], {}, 5, 0),
    ),
    "spaces, and no newline": ("3\r|0, 0\r|0, 150", {0: R123}, Found([1, 2, 3], {}, 3, 0)),
    "more was written": ("1|0,0|0,50|", {0: R123}, Found([1, 2, 3], {}, 3, 0)),
    "more was written to another file": (
        "1|0,0|0,50|",
        {0: R123, 1: R45},
        Found([1, 2, 3, 4, 5], {}, 5, 0),
    ),
    "more was written to another file alone": (
        "3|0,0|0,150|",
        {0: R123, 1: R45},
        Found([1, 2, 3, 4, 5], {}, 5, 0),
    ),
    "all was read, and more was written": ("0|0,50|0,50|", {0: R123}, Found([2, 3], {}, 2, 0)),
    "a record was not written whole": (
        "1|0,0|0,50|",
        {0: R123[:-7]},
        Found([1, 2], {"000000.dat.bad": 43}, 2, 1),
    ),
    "not even its length": ("1|0,0|0,50|", {0: R123[:103]}, Found([1, 2], {"000000.dat.bad": 3}, 2, 1)),
    "zeros were written": (
        "1|0,0|0,50|",
        {0: records(1) + bytes(100)},
        Found([1], {"000000.dat.bad": 100}, 1, 1),
    ),
    "the end is no end of a record": ("1|0,0|0,15|", {0: R123}, Found([1, 2, 3], {}, 4, 1)),
    "a part is missing": ("3|0,0|0,150|", {0: R123[:-5]}, Found([1, 2], {"000000.dat.bad": 145}, 3, 2)),
    "a part of a complete file is missing": (
        "5|0,0|1,100|",
        {0: R123[:-5], 1: R45},
        Found([1, 2, 4, 5], {"000000.dat.bad": 145}, 5, 2),
    ),
    "no length": ("3|0,0|0,150|", {0: b"\xff" * 4 + R123[4:]}, Found([], BAD, 0, 2)),
    "no length in the middle": (
        "5|0,0|1,100|",
        {0: R123[:50] + bytes(4) + R123[54:], 1: R45},
        Found([1, 4, 5], BAD, 5, 2),
    ),
    "no file": ("2|0,0|0,100|", {}, Found([], {}, 0, 2)),
    "no file, and nothing in it": ("0|0,100|0,100|", {}, Found([], {}, 0, 0)),
    "the first file is missing": ("5|0,0|1,100|", {1: R45}, Found([4, 5], {}, 5, 2)),
    "a file between is missing": ("7|0,0|2,100|", {0: R123, 2: R45}, Found([1, 2, 3, 4, 5], {}, 7, 2)),
    "the last file is missing": ("3|0,0|1,100|", {0: R123}, Found([1, 2, 3], {}, 3, 1)),
    "a depth that is too great": ("9|0,0|0,150|", {0: R123}, Found([1, 2, 3], {}, 9, 1)),
    "a depth that is too small": ("1|0,0|0,150|", {0: R123}, Found([1, 2, 3], {}, 1, 0)),
    "no depth": ("0|0,0|0,150|", {0: R123}, Found([1, 2, 3], {}, 1, 0)),
    "a depth below nothing": ("-2|0,0|0,150|", {0: R123}, Found([1, 2, 3], {}, 1, 0)),
    "a depth, and all is read": ("4|0,150|0,150|", {0: R123}, Found([], {}, 0, 1)),
    "reading behind the end": ("3|0,450|0,150|", {0: R123}, Found([], BAD, 0, 2)),
    "reading behind the last file": ("3|5,0|0,150|", {0: R123}, Found([], BAD, 0, 2)),
    "reading behind the end of a complete file": (
        "3|0,450|1,100|",
        {0: R123, 1: R45},
        Found([4, 5], BAD, 3, 2),
    ),
    "reading at the end of a complete file": (
        "2|0,150|1,100|",
        {0: R123, 1: R45},
        Found([4, 5], {}, 2, 0),
    ),
    "reading within a record": ("3|0,7|0,150|", {0: R123}, Found([], BAD, 0, 2)),
    "no positions": (None, {0: R123}, Found([], {}, 0, 0)),
    "positions that are none": (
        "garbage|",
        {2: R123, 3: R45},
        Found([1, 2, 3, 4, 5], {"meta.dat.bad": 8}, 5, 1),
    ),
    "empty positions": ("", {0: R123}, Found([1, 2, 3], {"meta.dat.bad": 0}, 3, 1)),
    "half of the positions": ("3|0,0|", {0: R123}, Found([1, 2, 3], {"meta.dat.bad": 6}, 3, 1)),
    "damaged positions, and nothing else": ("garbage|", {}, Found([], {"meta.dat.bad": 8}, 0, 1)),
    "damaged positions, and a gap": (
        "garbage|",
        {2: R123, 5: R45},
        Found([1, 2, 3, 4, 5], {"meta.dat.bad": 8}, 5, 3),
    ),
    "damaged positions, and a great gap": (
        "garbage|",
        {2: R123, 10**12: R45},
        Found([1, 2, 3, 4, 5], {"meta.dat.bad": 8}, 5, 2),
    ),
    "positions of more than 64 bits": (
        f"20|0,{1 << 70}|0,{(1 << 70) + 5}|",
        {0: R123},
        Found([1, 2, 3], {"meta.dat.bad": 53}, 3, 1),
    ),
    "positions of 64 bits": (
        f"3|0,0|0,{(1 << 64) - 1}|",
        {0: R123},
        Found([1, 2, 3], {"meta.dat.bad": 29}, 3, 1),
    ),
    "a depth of 64 bits": (
        "9223372036854775807|0,0|0,150|",
        {0: R123},
        Found([1, 2, 3], {"meta.dat.bad": 30}, 3, 1),
    ),
    "positions of thousands of digits": (
        f"3|0,0|0,{'1' * 5000}|",
        {0: R123},
        Found([1, 2, 3], {"meta.dat.bad": 5009}, 3, 1),
    ),
    "writing far behind the last file": (f"3|0,0|{10**12},7|", {0: R123}, Found([1, 2, 3], {}, 3, 1)),
    "writing far behind the last of some files": (
        f"5|0,0|{10**12},7|",
        {0: R123, 2: R45},
        Found([1, 2, 3, 4, 5], {}, 5, 2),
    ),
    "reading far behind the last file": (f"3|{10**12},0|0,150|", {0: R123}, Found([], BAD, 0, 2)),
}


@pytest.mark.parametrize(("text", "files", "found"), LEFT.values(), ids=LEFT.keys())
def test_queue_continues_from_files_in_any_state(text, files, found):
    assert find(text, files) == found


@pytest.mark.parametrize("number", [FILE_NUMBER_MAX, FILE_NUMBER_MAX + 1, NUMBER_MAX])
def test_messages_behind_the_greatest_positions_are_found_again(number: int):
    directory = MemoryFileStore({META: b"3\n0,0\n%d,7\n" % number})
    queue = opened(directory)
    queue.put(frames(*range(7)))
    queue.close()
    assert left(opened(directory)) == frames(*range(7))


def test_file_without_positions_is_overwritten():
    directory = MemoryFileStore({data_name(0): R123})
    queue = opened(directory)
    assert len(queue) == 0
    queue.put(frames(9))
    assert directory.files[data_name(0)] == records(9)


def test_missing_end_of_a_file_starts_the_next_file():
    directory = MemoryFileStore({data_name(0): R123, META: b"3\n0,0\n0,450\n"})
    queue = opened(directory, attrs.evolve(LIMITS, max_bytes_per_file=10_000))
    queue.put(frames(9))
    assert directory.files[data_name(1)] == records(9)
    assert left(queue) == frames(1, 2, 3, 9)


def test_missing_file_that_was_read_to_its_end_is_not_needed():
    directory = MemoryFileStore({META: b"0\n0,100\n0,100\n"})
    queue = opened(directory)
    queue.put(frames(3))
    assert queue.messages() == frames(3)
    assert left(queue) == frames(3)
    assert queue._state.reports == []


@pytest.mark.parametrize("after", [0, 1])
def test_messages_that_could_not_be_synced_at_once_are_written_by_the_next_sync(after):
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1))
    directory.fail(errno.EIO, after=after, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        queue.sync_data()
    queue.put(frames(2))
    queue.sync()
    assert left(opened(directory.power_cut(Random(1)))) == frames(1, 2)


def test_files_that_are_removed_on_a_full_disk_are_closed():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(*range(8)))
    queue.take(8)
    directory.capacity = sum(map(len, directory.files.values()))
    queue.sync()
    assert sizes(directory) == {"000002.dat": 2 * RECORD}
    assert directory.open_count == 2  # to read, and to write


def test_last_message_before_a_missing_and_an_empty_file_is_not_counted_twice():
    directory = MemoryFileStore({data_name(0): records(1), data_name(2): R123[:34], META: b"1\n0,0\n1,0\n"})
    queue = opened(directory)
    queue.put(frames(9))
    assert queue.take(1) == frames(1)
    assert len(queue) == 1
    assert left(queue) == frames(9)


def test_directory_missing_for_a_while_loses_no_message():
    directory = MemoryFileStore({data_name(0): R123, META: b"3\n0,0\n0,150\n"})
    queue = opened(directory)
    files, directory._names = directory._names, {}
    with pytest.raises(FileNotFoundError):
        queue.take(9)
    directory._names = files
    assert left(queue) == frames(1, 2, 3)


def test_removed_files_of_a_queue_keep_no_later_message():
    directory = MemoryFileStore({"nsqd.dat": b"{}", data_name(0): R123, META: b"3\n0,0\n0,150\n"})
    queue = opened(directory)
    directory.remove(data_name(0))
    directory.remove(META)
    assert left(queue) == []
    assert len(queue) == 0
    queue.put(frames(9))
    assert left(queue) == frames(9)


# It is a list.


def stored(directory: MemoryFileStore) -> list[bytes]:
    """Read the messages in the files by nsqd's rules."""
    if META not in directory.files:
        return []
    depth, read_file, read_position, write_file, write_position = map(int, re.findall(r"-?\d+", meta(directory)))
    found: list[bytes] = []
    for number in range(read_file, write_file + 1):
        data = directory.files.get(data_name(number), b"")
        if number == write_file:
            data = data[:write_position]
        part, end = from_records(data, read_position if number == read_file else 0, 1 << 30, 1000)
        assert end == max(len(data), read_position if number == read_file else 0), "there are whole records only"
        found += part
    assert len(found) == depth
    return found


@attrs.frozen
class Batch:
    """Messages that are put at once: the sizes of their records."""

    sizes: list[int]


BATCHES = st.lists(st.sampled_from([30, 31, 50, 100, 149, 150, 151, 400]), min_size=1, max_size=8)


class DiskQueueIsAList(RuleBasedStateMachine):
    """Put and take, sync, close and open again: nothing else than a list would show, and all the time nsqd's files."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = MemoryFileStore()
        self.expected: list[bytes] = []
        self.number = 0
        self.taken: list[bytes] = []  # since the sync, at most

    @initialize(sync_every=st.sampled_from([1, 2, 5, 40, 1000]), max_bytes_per_file=st.sampled_from([40, 150, 400]))
    def begin(self, sync_every: int, max_bytes_per_file: int) -> None:
        self.limits = BrokerOptions(sync_every=sync_every, max_bytes_per_file=max_bytes_per_file, max_msg_size=1000)
        self.notes = new_state()
        self.open()

    def count(self, taken: list[bytes]) -> None:
        self.taken += taken
        if self.queue in self.notes.due:
            self.queue.sync()
        if not self.queue.needs_sync:
            self.taken = []

    def open(self) -> None:
        self.queue = DiskQueue(self.directory, "q", self.limits, self.notes)
        self.taken = []

    @rule(sizes=BATCHES)
    def put(self, sizes: list[int]) -> None:
        batch = []
        for size in sizes:
            self.number += 1
            batch += frames(self.number, size=size)
        assert self.queue.put(batch) == 0
        self.expected += batch
        self.count([])

    @rule(sizes=BATCHES, kept=st.integers(0, 8))
    def put_and_undo(self, sizes: list[int], kept: int) -> None:
        """The messages in the last file alone are removed, and they are the last ones."""
        first = self.number + 1
        self.number += len(sizes)
        batch = [frames(first + place, size=size)[0] for place, size in enumerate(sizes)]
        self.queue.put(batch)
        last = self.data_files()[max(self.data_files())]
        in_last = len(from_records(last, 0, 1 << 30, 1000)[0])
        removed = self.queue.undo_put(batch[kept:])
        assert removed == min(len(batch[kept:]), in_last)
        self.expected += batch[: len(batch) - removed]
        self.count([])

    @rule(count=st.integers(1, 20))
    def take(self, count: int) -> None:
        taken = self.queue.take(count)
        assert taken == self.expected[:count]
        del self.expected[:count]
        self.count(taken)

    @rule()
    def sync(self) -> None:
        self.queue.sync()
        self.count([])
        assert stored(self.directory) == self.expected

    @rule()
    def close_and_open_again(self) -> None:
        self.queue.close()
        assert self.directory.open_count == 0
        assert stored(self.directory) == self.expected
        self.open()

    @rule()
    def open_again_after_a_kill(self) -> None:
        """At most the messages taken since the last sync are delivered again."""
        possible = self.taken + self.expected
        self.directory = self.directory.kill()
        self.open()
        assert len(self.expected) <= len(self.queue) <= len(possible)
        self.expected = possible[len(possible) - len(self.queue) :]

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        assert self.directory.files == {}
        self.expected = []
        self.count([])

    @invariant()
    @precondition(lambda self: hasattr(self, "queue"))
    def depth_is_that_of_the_list(self) -> None:
        assert len(self.queue) == len(self.expected)
        assert self.notes.reports == []

    @invariant()
    @precondition(lambda self: hasattr(self, "queue"))
    def files_are_in_a_row_and_within_the_limit(self) -> None:
        files = {int(name[:6]): data for name, data in self.data_files().items()}
        assert sorted(files) == list(range(min(files, default=0), max(files, default=-1) + 1))
        for data in files.values():
            if len(data) > self.limits.max_bytes_per_file:
                assert len(from_records(data, 0, 9, 1000)[0]) == 1

    def data_files(self) -> dict[str, bytes]:
        found = {name.removeprefix("q.diskqueue."): data for name, data in self.directory.files.items() if name != META}
        assert all(re.fullmatch(r"\d{6}\.dat", name) for name in found)
        return found


TestDiskQueueIsAList = DiskQueueIsAList.TestCase


# The process is killed, or the power is cut, in any operation.


@attrs.define
class Workload:
    """A queue, its user, and the user's actions so far."""

    directory: MemoryFileStore = attrs.field(factory=MemoryFileStore)
    put: list[bytes] = attrs.field(factory=list)
    putting: list[bytes] = attrs.field(factory=list)
    taken: list[bytes] = attrs.field(factory=list)
    taking: int = 0
    put_synced: int = 0
    taken_synced: int = 0

    def go(self, random: Random, steps: int = 25) -> None:
        """Put and take at random; until the process ends, perhaps."""
        limits = BrokerOptions(max_bytes_per_file=300, max_msg_size=1000, sync_every=10)
        state = new_state()
        queue = DiskQueue(self.directory, "q", limits, state)
        for _ in range(steps):
            if random.random() < 0.6:
                first = len(self.put)
                self.putting = [
                    frames(first + number, size=random.choice([30, 50, 120]))[0]
                    for number in range(random.randint(1, 9))
                ]
                queue.put(self.putting)
                self.put += self.putting
                self.putting = []
            else:
                self.taking = random.randint(1, 9)
                self.taken += queue.take(self.taking)
                self.taking = 0
            if queue in state.due:
                queue.sync()
            if not queue.needs_sync:
                self.put_synced, self.taken_synced = len(self.put), len(self.taken)

    def found(self, directory: MemoryFileStore) -> list[bytes]:
        return left(opened(directory))


@given(st.integers(0, 1 << 30), st.integers(0, 250))
def test_kill_loses_no_message_in_a_file(seed, operations):
    load = Workload()
    load.directory.end_after(operations)
    try:
        load.go(Random(seed))
    except Ended:
        pass
    found = load.found(load.directory.kill())
    everything = load.put + load.putting
    begin = everything.index(found[0]) if found else len(load.put)
    assert found == everything[begin : begin + len(found)], "in order, without a gap"
    assert load.taken_synced <= begin <= len(load.taken) + load.taking, (
        "only messages taken since the sync are delivered again"
    )
    assert begin + len(found) >= len(load.put)


@given(st.integers(0, 1 << 30), st.booleans())
def test_power_cut_loses_no_synced_message(seed, in_order):
    """Messages that were taken may be delivered again: names of positions, and removals, are not synced."""
    random = Random(seed)
    load = Workload()
    load.go(random, random.randint(1, 25))
    found = load.found(load.directory.power_cut(random, in_order=in_order))
    numbers = [load.put.index(frame) for frame in found]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= {*range(len(load.taken), load.put_synced)}


@given(st.integers(0, 1 << 30), st.integers(0, 250), st.booleans())
def test_power_cut_invents_no_message(seed, operations, in_order):
    """Whole files may be gone that were new, and those may be back that were removed."""
    random = Random(seed)
    load = Workload()
    load.directory.end_after(operations)
    try:
        load.go(random)
    except Ended:
        pass
    found = load.found(load.directory.power_cut(random, in_order=in_order))
    order = {frame: number for number, frame in enumerate(load.put + load.putting)}
    assert order.keys() >= set(found)
    numbers = [order[frame] for frame in found]
    assert numbers == sorted(set(numbers))


# The disk fails.


@given(
    st.integers(0, 1 << 30),
    st.integers(0, 150),
    st.integers(1, 5),
    st.sampled_from([errno.EIO, errno.ENOSPC, errno.EMFILE]),
)
def test_queue_holds_the_accepted_messages_after_any_error(seed, after, times, number):
    directory, random = MemoryFileStore(), Random(seed)
    limits = BrokerOptions(max_bytes_per_file=300, max_msg_size=1000, sync_every=10)
    queue = DiskQueue(directory, "q", limits, new_state())
    expected: list[bytes] = []
    directory.fail(number, after=after, times=times)
    for step in range(25):
        if random.random() < 0.6:
            batch = frames(*range(10 * step, 10 * step + random.randint(1, 9)))
            had = len(queue)
            try:
                queue.put(batch)
            except OSError:
                batch = batch[: len(queue) - had]
            expected += batch
        else:
            count = random.randint(1, 9)
            try:
                found = queue.take(count)
            except OSError:
                found = []
            assert found == expected[: len(found)]
            del expected[: len(found)]
        assert len(queue) == len(expected)
    directory.recover()
    queue.put(frames(999))  # cuts off the rest of a write that failed
    expected += frames(999)
    killed = left(opened(directory.kill()))
    assert killed[len(killed) - len(expected) :] == expected, "another process finds the same"
    assert left(queue) == expected
    assert not any(name.endswith(".bad") for name in directory.files)


def test_full_disk_takes_the_messages_that_fit():
    directory = MemoryFileStore()
    queue = opened(directory, attrs.evolve(LIMITS, max_bytes_per_file=10_000))
    queue.put(frames(0))
    directory.capacity = sum(map(len, directory.files.values())) + 4 * RECORD + 20
    with pytest.raises(OSError, match="No space left"):
        queue.put(frames(1, 2, 3, 4, 5, 6, 7))
    assert len(queue) == 5
    assert sizes(directory) == {"000000.dat": 5 * RECORD}, "nothing is left of what did not fit"
    with pytest.raises(OSError, match="No space left"):
        queue.put(frames(8))
    assert queue.take(2) == frames(0, 1)
    directory.recover()
    queue.put(frames(9))
    assert left(queue) == frames(2, 3, 4, 9)


def test_rest_of_a_failed_write_is_cut_off_before_the_next_file_begins():
    """It was delivered as a message of the complete file, and the last message of the queue was not."""
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1))
    directory.fail(errno.EIO, times=3)
    with pytest.raises(OSError, match="Input/output"):
        queue.put(frames(2, 3))
    assert sizes(directory) == {"000000.dat": 100}, "the rest is a whole record"
    directory.fail(errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        queue.put(frames(4, size=400))
    queue.put(frames(4, size=400))
    assert sizes(directory) == {"000000.dat": 50, "000001.dat": 400}
    assert left(queue) == [*frames(1), *frames(4, size=400)]


def test_last_write_decides_the_health():
    directory, state = MemoryFileStore(), new_state()
    queue = DiskQueue(directory, "q", LIMITS, state)
    directory.fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        queue.put(frames(1))
    assert state.health == "NOK - Input/output error"
    directory.recover()
    queue.put(frames(2))
    assert state.health == "OK"


def test_failed_sync_is_reported_and_repeated():
    directory, notes = MemoryFileStore(), new_state()
    queue = DiskQueue(directory, "q", LIMITS, notes)
    queue.put(frames(1))
    directory.fail(errno.EIO)
    queue.sync()
    assert notes.reports == ["failed to sync q: Input/output error"]
    assert (list(notes.unsynced), queue.needs_sync) == ([queue], True)
    directory.recover()
    queue.sync()
    assert (meta(directory), queue.needs_sync) == ("1|0,0|0,50|", False)


def test_read_error_loses_no_message():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3, 4))
    directory.fail(errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        queue.take(2)
    directory.recover()
    assert left(queue) == frames(1, 2, 3, 4)


def test_file_that_cannot_be_removed_is_reported(monkeypatch):
    directory, notes = MemoryFileStore(), new_state()
    queue = DiskQueue(directory, "q", LIMITS, notes)
    queue.put(frames(1, 2, 3, 4))

    def refuse(name: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(directory, "remove", refuse)
    assert queue.take(9) == frames(1, 2, 3, 4)
    queue.sync()
    assert len(notes.reports) == 1
    assert data_name(0) in notes.reports[0]
    with pytest.raises(PermissionError):
        queue.empty()
    queue.put(frames(5))
    assert left(queue) == frames(5)
    queue.put(frames(6))
    queue.delete()
    assert (len(queue), len(notes.reports)) == (0, 2)


# A stop, which a supervisor does not await for long.


def test_close_writes_and_syncs_two_files():
    directory = MemoryFileStore()
    queue = opened(directory)
    before = directory.operation_count
    queue.close(frames(1))
    assert directory.sync_count == 2, "the messages and the positions, as in nsqd"
    assert directory.operation_count - before <= 11
    assert left(opened(directory)) == frames(1)


def test_close_of_an_unchanged_queue_writes_nothing():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.close()
    assert directory.files == {}
    queue = opened(directory)
    queue.put(frames(1, 2))
    queue.close()
    queue = opened(directory)
    before = directory.operation_count
    queue.close()
    assert directory.operation_count == before
    assert left(opened(directory)) == frames(1, 2)


def test_emptied_queue_writes_its_positions_again():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1))
    queue.empty()
    queue.put(frames(2))
    assert left(opened(directory.kill())) == frames(2)


# Positions that cannot be read.


def test_positions_survive_a_lack_of_file_descriptors():
    directory = MemoryFileStore()
    queue = opened(directory)
    queue.put(frames(1, 2, 3))
    queue.take(2)
    queue.close()
    files = directory.files
    directory.fail(errno.EMFILE, times=1)
    with pytest.raises(OSError, match="Too many open files"):
        opened(directory)
    assert directory.files == files
    assert left(opened(directory)) == frames(3)


@pytest.mark.parametrize("room", [0, 5, 100])
def test_positions_that_cannot_be_read_are_replaced_or_remain(room: int):
    """The disk is full when a read has failed."""
    directory = MemoryFileStore({data_name(0): R123, META: b"3\n0,0\n0,150\n"})
    directory.fail(errno.EIO, times=1)
    directory.capacity = sum(map(len, directory.files.values())) + room
    opened(directory)
    assert left(opened(directory.kill())) == frames(1, 2, 3)


@pytest.mark.parametrize("failing", range(8))
def test_damaged_positions_are_replaced_or_remain(failing: int):
    """A queue without positions would be taken for an empty one, and be written over."""
    directory = MemoryFileStore({data_name(0): R123})
    directory.replace(META, b"garbage")
    directory.fail(errno.ENOSPC, after=failing)
    with suppress(OSError):
        opened(directory)
    assert left(opened(directory.kill())) == frames(1, 2, 3)
