"""A topic: ids, shared frames, and messages that wait for a channel."""

from __future__ import annotations

import errno

import pytest

from nsqkit.broker.core.changes import Changes
from nsqkit.broker.core.disk.guid import SEQUENCE_LENGTH
from nsqkit.broker.core.disk.queue import PartlyStored
from nsqkit.broker.core.disk.records import record_size
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage, MemoryStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.topic import PART_COUNT, Topic
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, ID, encode_message
from tests.broker.core.disk.disks import MemoryFileStore
from tests.broker.core.topics.queues import take_all

NOW_NS = 1_704_067_200 * 10**9


def make(name: bytes = b"t", mem_queue_size: int = 100) -> Topic:
    return Topic(name, Timers(), Changes(), MemoryStorage(mem_queue_size, node_id=1), BrokerOptions())


def handle_due(topic: Topic, now_ns: int) -> None:
    """Call the owners whose deadline has come, as the broker does."""
    for owner in topic._timers.take_due(now_ns):
        if (again_ns := owner.handle_deadline(now_ns)) is not None:
            topic._timers.schedule(owner, again_ns)


def waiting(channel: Channel) -> list[bytes]:
    """Take the bodies that wait in a channel's queue."""
    return [frame[FRAME_HEADER_LENGTH:] for frame in take_all(channel.queue)]


def deferred(channel: Channel) -> list[tuple[int, bytes]]:
    """Look at the deferred messages of a channel: how long after NOW_NS, and the body."""
    return sorted((due_ns - NOW_NS, frame[FRAME_HEADER_LENGTH:]) for due_ns, _, frame in channel.deferred._heap)


# Publishing.


def test_message_gets_an_id_the_time_and_attempts_1():
    topic = make()
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"one", b"two"], NOW_NS)
    first, second = take_all(channel.queue)
    assert first == encode_message(NOW_NS, 1, first[ID], b"one")
    assert second == encode_message(NOW_NS, 1, second[ID], b"two")
    assert first[ID] < second[ID]


def test_batch_that_needs_the_ids_of_many_ticks_is_complete_and_in_order():
    topic = make(mem_queue_size=10_000)
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"m"], NOW_NS)
    bodies = [b"%d" % n for n in range(2 * SEQUENCE_LENGTH + 3)]
    topic.put(bodies, NOW_NS)
    frames = take_all(channel.queue)
    assert [frame[FRAME_HEADER_LENGTH:] for frame in frames] == [b"m", *bodies]
    ids = [frame[ID] for frame in frames]
    assert ids == sorted(set(ids))


def test_every_channel_gets_every_message_and_shares_its_frame():
    topic = make()
    channels = [topic.channel(name, NOW_NS) for name in (b"a", b"b", b"c")]
    topic.put([b"m"], NOW_NS)
    topic.put([b"later"], NOW_NS, delay_ns=50)
    frames = [take_all(channel.queue)[0] for channel in channels]
    assert frames[0] is frames[1] is frames[2]
    later = [channel.deferred.remove_everything()[0] for channel in channels]
    assert later[0] is later[1] is later[2]


def test_deferred_message_goes_to_the_deferred_set_of_each_channel():
    topic = make()
    channels = [topic.channel(name, NOW_NS) for name in (b"a", b"b")]
    topic.put([b"m"], NOW_NS, delay_ns=50)
    assert [deferred(channel) for channel in channels] == [[(50, b"m")]] * 2
    assert [len(channel.queue) for channel in channels] == [0, 0]


def test_messages_and_bytes_are_counted():
    topic = make()
    topic.put([b"one", b"three"], NOW_NS)
    topic.channel(b"c", NOW_NS)
    topic.put([b"four"], NOW_NS, delay_ns=5)
    topic.put([], NOW_NS)
    assert (topic.message_count, topic.message_bytes) == (3, 12)


# Waiting for the first channel.


def test_first_channel_gets_the_waiting_messages_and_the_second_does_not():
    topic = make()
    topic.put([b"1", b"2"], NOW_NS)
    assert len(topic.queue) == 2
    first = topic.channel(b"a", NOW_NS)
    second = topic.channel(b"b", NOW_NS)
    assert (len(topic.queue), waiting(first), waiting(second)) == (0, [b"1", b"2"], [])
    assert (first.message_count, second.message_count) == (2, 0)


def test_channel_is_made_once():
    topic = make()
    assert topic.channel(b"c", NOW_NS) is topic.channel(b"c", NOW_NS)


def test_delay_of_a_waiting_message_begins_when_a_channel_gets_it():
    topic = make()
    topic.put([b"later", b"too"], NOW_NS - 1000, delay_ns=50)
    topic.put([b"now"], NOW_NS - 1000)
    topic.put([b"much later"], NOW_NS - 1000, delay_ns=70)
    channel = topic.channel(b"c", NOW_NS)
    assert deferred(channel) == [(50, b"later"), (50, b"too"), (70, b"much later")]
    assert waiting(channel) == [b"now"]
    topic.put([b"next"], NOW_NS)
    assert waiting(channel) == [b"next"], "the earlier delays are dropped"
    assert topic.waiting_delays_ns == {}


@pytest.mark.parametrize(("name", "kept"), [(b"t", 3), (b"t#ephemeral", 2)])
def test_only_an_ephemeral_topic_drops_messages_beyond_its_memory(name, kept):
    topic = make(name, mem_queue_size=2)
    topic.put([b"1", b"2", b"3"], NOW_NS)
    assert len(topic.queue) == kept
    assert topic.message_count == 3
    assert waiting(topic.channel(b"c", NOW_NS)) == [b"1", b"2", b"3"][:kept]


def test_dropped_message_leaves_no_delay():
    topic = make(b"t#ephemeral", mem_queue_size=2)
    topic.put([b"now"], NOW_NS)
    topic.put([b"kept", b"dropped"], NOW_NS, delay_ns=50)
    assert len(topic.waiting_delays_ns) == 1
    channel = topic.channel(b"c", NOW_NS)
    assert (waiting(channel), deferred(channel)) == ([b"now"], [(50, b"kept")])


# Pausing and emptying.


def test_paused_topic_keeps_new_messages_until_it_is_unpaused():
    topic = make()
    channel = topic.channel(b"a", NOW_NS)
    topic.pause()
    topic.put([b"1"], NOW_NS)
    topic.put([b"later"], NOW_NS - 1000, delay_ns=50)
    other = topic.channel(b"b", NOW_NS)
    assert (len(topic.queue), len(channel.queue)) == (2, 0)
    topic.unpause(NOW_NS)
    for each in (channel, other):
        assert (waiting(each), deferred(each)) == ([b"1"], [(50, b"later")])
    topic.put([b"2"], NOW_NS)
    assert waiting(channel) == [b"2"]


def test_unpausing_a_topic_without_channels_loses_nothing():
    topic = make()
    topic.pause()
    topic.put([b"later"], NOW_NS, delay_ns=50)
    topic.unpause(NOW_NS)
    assert deferred(topic.channel(b"c", NOW_NS)) == [(50, b"later")]


def test_empty_removes_messages_of_the_topic_and_not_of_its_channels():
    topic = make()
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"has"], NOW_NS)
    topic.pause()
    topic.put([b"waits"], NOW_NS)
    topic.put([b"waits"], NOW_NS, delay_ns=50)
    topic.empty()
    assert topic.waiting_delays_ns == {}
    topic.unpause(NOW_NS)
    assert (waiting(channel), deferred(channel)) == ([b"has"], [])


# A backlog, in parts.


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("mem_queue_size", [0, 100, 1 << 20])
def test_long_backlog_is_given_in_parts_and_new_messages_wait_behind_it(mem_queue_size):
    topic = make(mem_queue_size=mem_queue_size)
    topic.put(numbers(2 * PART_COUNT + 1), NOW_NS)
    channels = [topic.channel(b"c", NOW_NS)]
    first_part = len(channels[0].queue)
    assert 0 < first_part <= PART_COUNT
    channels.append(topic.channel(b"d", NOW_NS))
    topic.put(numbers(2, 2 * PART_COUNT + 1), NOW_NS)
    topic.put([b"later"], NOW_NS, delay_ns=70)
    while topic.due_ns is not None:
        assert topic._timers.next_deadline() == NOW_NS, "the next part follows at once, but after other deadlines"
        handle_due(topic, NOW_NS)
    assert len(topic.queue) == 0
    expected = numbers(2 * PART_COUNT + 3)
    assert [deferred(channel) for channel in channels] == [[(70, b"later")]] * 2
    assert waiting(channels[0]) == expected
    assert waiting(channels[1]) == expected[first_part:]
    topic.put([b"direct"], NOW_NS)
    assert waiting(channels[0]) == [b"direct"]


def test_pause_or_removed_channel_stops_a_backlog_between_parts():
    topic = make()
    topic.put(numbers(PART_COUNT + 1), NOW_NS)
    given = len(topic.channel(b"c", NOW_NS).queue)
    topic.pause()
    handle_due(topic, NOW_NS)
    assert len(topic.queue) == PART_COUNT + 1 - given
    topic.unpause(NOW_NS)
    topic.remove_channel(b"c")
    topic.put([b"last"], NOW_NS)
    handle_due(topic, NOW_NS)
    assert waiting(topic.channel(b"d", NOW_NS))[-1] == b"last"


# Being started.


def test_messages_wait_until_the_topic_is_started_with_or_without_channels():
    topic = Topic(b"t", Timers(), Changes(), MemoryStorage(100), BrokerOptions(), started=False)
    topic.put([b"1"], NOW_NS)
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"2"], NOW_NS)
    topic.unpause(NOW_NS)
    assert (len(topic.queue), len(channel.queue)) == (2, 0)
    topic.start([b"c", b"d"], NOW_NS)
    assert list(topic.channels) == [b"c", b"d"]
    assert [waiting(each) for each in topic.channels.values()] == [[b"1", b"2"]] * 2
    topic.put([b"3"], NOW_NS)
    assert waiting(channel) == [b"3"]


def test_topic_started_without_a_channel_keeps_its_messages():
    topic = Topic(b"t", Timers(), Changes(), MemoryStorage(100), BrokerOptions(), started=False)
    topic.start([], NOW_NS)
    topic.put([b"1"], NOW_NS)
    assert waiting(topic.channel(b"c", NOW_NS)) == [b"1"]


# On a disk.


def on_disk(directory: MemoryFileStore, mem_queue_size: int = 1, max_bytes_per_file: int = 1 << 20) -> Topic:
    options = BrokerOptions(mem_queue_size=mem_queue_size, max_bytes_per_file=max_bytes_per_file)
    storage = DiskStorage(directory, options)
    return Topic(b"t", Timers(), Changes(), storage, options)


def test_message_written_to_disk_loses_its_delay():
    topic = on_disk(MemoryFileStore(), 2)
    topic.put([b"1"], NOW_NS)
    topic.put([b"2", b"3"], NOW_NS, delay_ns=50)
    channel = topic.channel(b"c", NOW_NS)
    assert (waiting(channel), deferred(channel)) == ([b"1", b"3"], [(50, b"2")])


def test_messages_on_disk_since_the_start_take_no_delay_from_new_ones():
    directory = MemoryFileStore()
    topic = on_disk(directory, 2)
    topic.put(numbers(3), NOW_NS)
    topic.close()
    again = on_disk(directory, 2)
    again.put([b"3", b"4", b"5"], NOW_NS + 10**9, delay_ns=50)
    assert len(again.queue) == 6
    channel = again.channel(b"c", NOW_NS)
    assert sorted(waiting(channel)) == [*numbers(3), b"5"]
    assert deferred(channel) == [(50, b"3"), (50, b"4")], "as many as nsqd has room for in memory"
    again.pause()
    again.put([b"6"], NOW_NS + 2 * 10**9, delay_ns=50)
    again.unpause(NOW_NS)
    assert len(deferred(channel)) == 3


def test_messages_with_the_id_of_a_deferred_one_are_not_lost():
    directory = MemoryFileStore()
    earlier = on_disk(directory)
    earlier.put([b"old", b"1"], NOW_NS)
    earlier.close()
    topic = on_disk(directory)
    topic.put([b"new"], NOW_NS, delay_ns=50)
    channel = topic.channel(b"c", NOW_NS)
    assert sorted(waiting(channel) + [body for _, body in deferred(channel)]) == [b"1", b"new", b"old"]


def test_stored_messages_are_there_at_the_next_start():
    directory = MemoryFileStore()
    topic = on_disk(directory)
    topic.put(numbers(3), NOW_NS)
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"deferred"], NOW_NS, delay_ns=50)
    topic.pause()
    topic.put([b"in the topic"], NOW_NS)
    assert topic.close() == []
    again = on_disk(directory)
    assert len(again.queue) == 1
    found = waiting(again.channel(b"c", NOW_NS))
    assert found == [b"1", b"2", b"0", b"deferred", b"in the topic"], (
        "first the messages that were on disk before, as in nsqd"
    )
    assert channel.deferred.remove_everything() == []


def test_close_tries_all_queues_and_returns_the_errors():
    directory = MemoryFileStore()
    topic = on_disk(directory, 5)
    topic.channel(b"c", NOW_NS)
    topic.channel(b"d", NOW_NS)
    topic.put([b"1"], NOW_NS)
    topic.pause()
    topic.put([b"2"], NOW_NS)
    directory.fail(errno.EIO, times=1)
    (failure,) = topic.close()
    assert failure.errno == errno.EIO
    again = on_disk(directory)
    assert [len(again.queue), len(again.channel(b"d", NOW_NS).queue)] == [1, 2]


@pytest.mark.parametrize("full", [0, 1, 2])
def test_publish_that_one_channel_cannot_store_is_in_no_other(full: int):
    """The others have room in memory; a publisher that repeats it until there is space floods nothing."""
    directory = MemoryFileStore()
    topic = on_disk(directory, 2)
    channels = [topic.channel(name, NOW_NS) for name in (b"c", b"d", b"e")]
    channels[full].put([encode_message(NOW_NS, 0, b"%016d" % number, b"old") for number in (1, 2)])
    directory.fail(errno.ENOSPC)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            topic.put([b"1"], NOW_NS)
    assert [len(channel.queue) for channel in channels] == [2 * (number == full) for number in range(3)]
    assert [channel.message_count for channel in channels] == [2 * (number == full) for number in range(3)]
    assert topic.message_count == 0
    directory.recover()
    topic.put([b"2"], NOW_NS)
    assert [waiting(channel)[-1] for channel in channels] == [b"2"] * 3


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("other", [0, 3, 4, 9])
@pytest.mark.parametrize("order", [1, -1])
def test_channels_keep_the_messages_that_all_of_them_could_store_or_none(order: int, other: int, one_by_one: bool):
    directory = MemoryFileStore()
    topic = on_disk(directory, 10)
    channels = [topic.channel(name, NOW_NS) for name in (b"c", b"d")][::order]
    for channel, count in zip(channels, (5, other), strict=True):
        channel.put([encode_message(NOW_NS, 0, b"%016d" % number, b"old") for number in range(count)])
    directory.fail(errno.ENOSPC)
    with pytest.raises(PartlyStored) as caught:
        topic.put(numbers(7), NOW_NS, one_by_one=one_by_one)
    stored = min(5, 10 - other) if one_by_one else 0
    assert caught.value.stored_count == stored
    assert [waiting(channel)[count:] for channel, count in zip(channels, (5, other), strict=True)] == [
        numbers(stored),
        numbers(stored),
    ]
    assert [channel.message_count for channel in channels] == [5 + stored, other + stored]
    assert (topic.message_count, topic.message_bytes) == (stored, stored)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_topic_without_channels_keeps_the_messages_that_it_could_store_or_none(one_by_one: bool):
    directory = MemoryFileStore()
    topic = on_disk(directory, 2)
    directory.fail(errno.ENOSPC)
    with pytest.raises(PartlyStored) as caught:
        topic.put(numbers(7), NOW_NS, one_by_one=one_by_one)
    assert caught.value.stored_count == topic.message_count == len(topic.queue) == 2 * one_by_one


@pytest.mark.parametrize("max_bytes_per_file", [50, 1000])
def test_publish_is_not_in_the_files_of_channels_that_stored_it_before_the_disk_was_full(max_bytes_per_file: int):
    """A publisher sends the refused message and those behind it again. Only a message in a complete file stays."""
    directory = MemoryFileStore()
    topic = on_disk(directory, 0, max_bytes_per_file)
    channels = [topic.channel(name, NOW_NS) for name in (b"c", b"d")]
    topic.put([b"0"], NOW_NS)
    directory.capacity = sum(map(len, directory.files.values())) + 2 * record_size(
        encode_message(0, 1, bytes(16), b"1")
    )
    with pytest.raises(PartlyStored):
        topic.put([b"1", b"2"], NOW_NS, one_by_one=True)
    directory.recover()
    topic.put([b"3"], NOW_NS)
    stays = [b"1"] if max_bytes_per_file == 50 else []
    assert [waiting(channel) for channel in channels] == [[b"0", *stays, b"3"], [b"0", b"3"]]
    assert [channel.message_count for channel in channels] == [2 + len(stays), 2]


def test_publish_that_a_failing_disk_does_not_cut_off_is_cut_off_by_the_next_one():
    directory = MemoryFileStore()
    topic = on_disk(directory, 0)
    channels = [topic.channel(name, NOW_NS) for name in (b"c", b"d")]
    topic.put([b"0"], NOW_NS)
    directory.fail(errno.EIO, after=1)
    with pytest.raises(PartlyStored):
        topic.put([b"1"], NOW_NS)
    directory.recover()
    topic.put([b"2"], NOW_NS)
    assert [waiting(channel) for channel in channels] == [[b"0", b"2"], [b"0", b"2"]]


def test_failed_read_of_a_backlog_is_repeated_after_a_second():
    directory = MemoryFileStore()
    topic = on_disk(directory, 0)
    channel = topic.channel(b"c", NOW_NS)
    topic.pause()
    topic.put(numbers(3), NOW_NS)
    directory.fail(errno.EIO)
    topic.unpause(NOW_NS)
    assert topic._timers.next_deadline() == NOW_NS + 10**9
    directory.recover()
    topic.put([b"3"], NOW_NS)
    handle_due(topic, NOW_NS + 10**9)
    assert waiting(channel) == numbers(4)


def test_deleting_a_topic_leaves_no_files():
    directory = MemoryFileStore()
    topic = on_disk(directory, 0)
    topic.put([b"1"], NOW_NS)
    topic.delete()
    assert directory.files == {}


# On a disk, with every message kept until it is finished.


def kept(directory: MemoryFileStore, *channels: bytes) -> Topic:
    options = BrokerOptions(durability="fsync", keep_deferred=True)
    storage = DurableStorage(directory, options)
    topic = Topic(b"t", Timers(), Changes(), storage, options, started=False)
    for name in channels:
        topic.channel(name, NOW_NS)
    return topic


@pytest.mark.parametrize("operations", range(16))
def test_deferred_messages_wait_in_the_topic_while_the_disk_is_full(operations: int):
    directory = MemoryFileStore()
    topic = kept(directory, b"c", b"d")
    for body in numbers(3):
        topic.put([body], NOW_NS, delay_ns=50)
    topic.put([b"at once"], NOW_NS)
    directory.fail(errno.ENOSPC, after=operations)
    topic.start([], NOW_NS)
    for seconds in range(3):
        assert topic.queue
        for channel in topic.channels.values():
            assert len(topic.queue) + len(channel.deferred) + len(channel.queue) >= 4
        assert topic._timers.next_deadline() == NOW_NS + (seconds + 1) * 10**9
        handle_due(topic, NOW_NS + (seconds + 1) * 10**9)
    directory.recover()
    handle_due(topic, NOW_NS + 4 * 10**9)
    assert len(topic.queue) == 0
    for channel in topic.channels.values():
        assert sorted(frame[-1:] for frame in channel.deferred.remove_everything()) == numbers(3)
        assert channel.message_count == 4
        assert waiting(channel) == [b"at once"]


@pytest.mark.parametrize("delay_ns", [0, 50])
def test_close_on_a_full_disk_loses_no_written_message(delay_ns: int):
    directory = MemoryFileStore()
    topic = kept(directory, b"c")
    bodies = [number * 1000 for number in numbers(3)]
    topic.put(bodies, NOW_NS, delay_ns=delay_ns)
    directory.capacity = sum(map(len, directory.files.values())) + 500  # for positions, and not for messages
    topic.start([], NOW_NS)
    assert topic.close() != []
    directory.recover()
    again = kept(directory.kill(), b"c")
    again.start([], NOW_NS)
    channel = again.channels[b"c"]
    assert sorted([*waiting(channel), *(body for _, body in deferred(channel))]) == bodies
