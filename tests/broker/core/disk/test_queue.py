"""The queue: order, overflow, and the amount that is taken at once."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.queue import DiscardBackend, MemoryBackend, MessageQueue, PartlyStored
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore, new_state
from tests.broker.core.topics.queues import take_all

ANY_SIZE = 1 << 30


def frames(*numbers: int) -> list[bytes]:
    return [b"%04d" % number for number in numbers]


def filled(mem_queue_size: int, count: int) -> MessageQueue:
    queue = MessageQueue(mem_queue_size, MemoryBackend())
    queue.put(frames(*range(count)))
    return queue


def test_queue_is_first_in_first_out():
    queue = filled(10, 3)
    queue.put(frames(3))
    assert len(queue) == 4
    assert queue.take(2, ANY_SIZE) == frames(0, 1)
    assert queue.take(9, ANY_SIZE) == frames(2, 3)
    assert queue.take(9, ANY_SIZE) == []
    assert len(queue) == 0


@pytest.mark.parametrize(("mem_queue_size", "behind"), [(0, 5), (1, 4), (4, 1), (5, 0), (6, 0)])
def test_messages_beyond_the_memory_limit_go_to_the_backend(mem_queue_size, behind):
    queue = filled(mem_queue_size, 5)
    assert (len(queue), len(queue.backend)) == (5, behind)
    assert take_all(queue) == frames(0, 1, 2, 3, 4)


def test_messages_in_memory_are_taken_before_those_of_the_backend():
    queue = filled(3, 5)
    assert queue.take(5, ANY_SIZE) == frames(0, 1, 2)
    assert queue.take(5, ANY_SIZE) == frames(3, 4)


def test_new_messages_do_not_overtake_those_of_the_backend():
    queue = filled(3, 5)
    assert queue.take(2, ANY_SIZE) == frames(0, 1)
    queue.put(frames(5, 6))
    assert len(queue.backend) == 4
    assert queue.take(1, ANY_SIZE) + queue.take(9, ANY_SIZE) == frames(2, 3, 4, 5, 6)
    queue.put(frames(7))
    assert len(queue.backend) == 0, "the backend is empty, so memory is used again"


def test_ephemeral_queue_keeps_its_oldest_messages():
    queue = MessageQueue(3, DiscardBackend())
    queue.put(frames(0, 1))
    queue.put(frames(2, 3, 4))
    queue.put(frames(5))
    assert (len(queue), len(queue.backend)) == (3, 0)
    assert queue.take(1, ANY_SIZE) == frames(0)
    queue.put(frames(6, 7))
    assert take_all(queue) == frames(1, 2, 6)


def test_ephemeral_queue_without_memory_keeps_nothing():
    queue = MessageQueue(0, DiscardBackend())
    queue.put(frames(0))
    assert queue.take(1, ANY_SIZE) == take_all(queue) == []
    queue.empty()


def test_take_is_limited_by_size():
    queue = filled(10, 5)
    assert queue.take(5, 11) == frames(0, 1)
    assert queue.take(5, 12) == frames(2, 3, 4)


def test_small_messages_after_a_large_one_are_taken_by_the_next_call():
    queue = MessageQueue(10, MemoryBackend())
    queue.put([b"x" * 100, *frames(1, 2)])
    assert queue.take(3, 104) == [b"x" * 100]
    assert queue.take(3, 104) == frames(1, 2)


def test_one_message_of_any_size_is_taken():
    queue = filled(10, 2)
    assert queue.take(2, 1) == frames(0)
    assert queue.take(2, 1) == frames(1)


def test_messages_put_back_keep_their_place():
    queue = filled(1, 6)
    assert queue.take(6, ANY_SIZE) == frames(0)
    assert queue.take(4, 8) == frames(1, 2)
    assert (len(queue), len(queue.backend)) == (3, 1), "two came back, into a memory for one"
    queue.put(frames(6))
    assert queue.take(1, ANY_SIZE) + queue.take(9, ANY_SIZE) + queue.take(9, ANY_SIZE) == frames(3, 4, 5, 6)


def test_messages_put_back_stand_before_those_not_taken():
    queue = filled(10, 6)
    assert queue.take(4, 8) == frames(0, 1)
    assert take_all(queue) == frames(2, 3, 4, 5)


def test_overfull_memory_accepts_nothing():
    queue = filled(1, 4)
    queue.take(1, ANY_SIZE)
    assert queue.take(3, 4) == frames(1)
    assert (len(queue), len(queue.backend)) == (2, 0), "two came back, into a memory for one"
    queue.put(frames(4, 5))
    assert len(queue.backend) == 2
    assert take_all(queue) == frames(2, 3, 4, 5)


def test_empty_removes_messages_from_memory_and_backend():
    queue = filled(2, 5)
    queue.empty()
    assert (len(queue), len(queue.backend), take_all(queue)) == (0, 0, [])
    queue.put(frames(9))
    assert take_all(queue) == frames(9)


def messages(*numbers: int) -> list[bytes]:
    return [encode_message(number, 1, b"%016d" % number, b"body") for number in numbers]


def on_disk(mem_queue_size: int, directory: MemoryFileStore) -> MessageQueue:
    limits = BrokerOptions(max_bytes_per_file=10_000, max_msg_size=100, sync_every=100)
    return MessageQueue(mem_queue_size, DiskQueue(directory, "q", limits, new_state()))


def test_put_fails_if_the_disk_takes_only_a_part_and_the_part_is_kept():
    directory = MemoryFileStore()
    queue = on_disk(2, directory)
    queue.put(messages(0, 1, 2))
    directory.capacity = sum(map(len, directory.files.values())) + 2 * 34
    with pytest.raises(OSError, match="No space left"):
        queue.put(messages(3, 4, 5))
    assert len(queue) == 5
    assert take_all(queue) == messages(0, 1, 2, 3, 4)


@pytest.mark.parametrize("mem_queue_size", [0, 1, 3, 4])
@pytest.mark.parametrize("on_disk_count", [0, 1, 2])
def test_put_that_fails_counts_the_first_messages_which_are_stored(mem_queue_size: int, on_disk_count: int):
    directory = MemoryFileStore()
    queue = on_disk(mem_queue_size, directory)
    queue.put(messages(0))
    space_for_positions = 20
    directory.capacity = sum(map(len, directory.files.values())) + on_disk_count * 34 + space_for_positions
    frames = messages(*range(1, 8))
    with pytest.raises(PartlyStored, match="No space left") as caught:
        queue.put(frames)
    stored = max(mem_queue_size - 1, 0) + on_disk_count
    assert caught.value.stored_count == stored
    assert len(queue) == 1 + stored
    assert take_all(queue) == [*messages(0), *frames[:stored]]


@pytest.mark.parametrize("kept", range(4))
@pytest.mark.parametrize("mem_queue_size", [1, 3, 4])
@pytest.mark.parametrize("backend", ["disk", "memory"])
def test_undo_put_removes_the_last_messages_in_memory_and_behind_it(backend, mem_queue_size, kept):
    queue = (
        on_disk(mem_queue_size, MemoryFileStore())
        if backend == "disk"
        else MessageQueue(mem_queue_size, MemoryBackend())
    )
    queue.put(messages(0))
    frames = messages(1, 2, 3)
    queue.put(frames)
    assert queue.undo_put(frames[kept:]) == 3 - kept
    queue.put(messages(4))
    assert take_all(queue) == messages(*range(1 + kept), 4)


def test_undo_put_of_an_ephemeral_queue_counts_no_message_that_was_dropped():
    queue = MessageQueue(2, DiscardBackend())
    frames = messages(1, 2, 3)
    queue.put(frames)
    assert queue.undo_put(frames) == 2
    assert take_all(queue) == []


@pytest.mark.parametrize(("room", "kept"), [(0, False), (1, False), (3, True)])
def test_messages_put_back_are_never_lost(room, kept):
    directory = MemoryFileStore()
    queue = on_disk(1, directory)
    queue.put(messages(0, 1))
    directory.capacity = sum(map(len, directory.files.values())) + room * 34
    assert queue.keep(messages(2, 3, 4)) == kept
    directory.recover()
    assert sorted(take_all(queue)) == messages(0, 1, 2, 3, 4)
    queue.put_back(messages(5, 6))
    assert take_all(queue) == messages(5, 6)


def test_messages_that_cannot_be_read_now_are_delivered_later():
    directory = MemoryFileStore()
    queue = on_disk(1, directory)
    queue.put(messages(0, 1))
    directory.fail(errno.EIO)
    assert queue.take(5, ANY_SIZE) == messages(0)
    with pytest.raises(OSError, match="Input/output"):
        queue.take(5, ANY_SIZE)
    directory.recover()
    assert take_all(queue) == messages(1)


def test_close_writes_memory_and_further_messages_behind_those_on_disk():
    directory = MemoryFileStore()
    queue = on_disk(2, directory)
    queue.put(messages(2, 3, 0, 1))
    queue.close(messages(4), messages(5, 6))
    assert take_all(on_disk(2, directory)) == messages(0, 1, 2, 3, 4, 5, 6)


def test_close_on_a_full_disk_stores_what_fits_and_reports_the_error():
    directory = MemoryFileStore()
    queue = on_disk(5, directory)
    queue.put(messages(0, 1, 2, 3))
    directory.capacity = 130  # three records, and the positions twice
    with pytest.raises(OSError, match="No space left"):
        queue.close(messages(4))
    assert directory.open_count == 0
    directory.recover()
    found = take_all(on_disk(5, directory))
    assert found == messages(0, 1, 2, 3, 4)[: len(found)]
    assert found


def test_delete_leaves_no_files():
    directory = MemoryFileStore()
    queue = on_disk(1, directory)
    queue.put(messages(0, 1, 2))
    queue.delete()
    assert (len(queue), directory.files) == (0, {})
    queue.put(messages(3))
    assert take_all(queue) == messages(3)


def test_close_without_a_disk_drops_messages():
    for backend in (MemoryBackend(), DiscardBackend()):
        queue = MessageQueue(1, backend)
        queue.put(frames(0, 1))
        queue.close(frames(2))


@given(
    st.integers(0, 4),
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "take_all"]), st.integers(0, 6), st.integers(1, 30)),
        max_size=40,
    ),
)
def test_queue_equals_a_list(mem_queue_size, steps):
    queue, expected, number = MessageQueue(mem_queue_size, MemoryBackend()), [], 0
    for verb, count, size_max in steps:
        if verb == "put":
            new = frames(*range(number, number + count))
            number += count
            queue.put(new)
            expected += new
        elif verb == "take":
            taken = queue.take(count, size_max)
            assert taken == expected[: len(taken)]
            assert len(taken) == 1 or len(b"".join(taken)) <= size_max
            assert len(taken) <= count
            assert bool(taken) == bool(count and expected)
            del expected[: len(taken)]
        else:
            assert take_all(queue) == expected
            expected = []
        assert len(queue) == len(expected)
