"""The times of deferred messages, from one run of a broker to the next."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.disk.sync import SyncState
from nsqkit.broker.core.options import BrokerOptions
from tests.broker.core.disk.disks import MemoryFileStore, new_state
from tests.pairs import NS_PER_S, DrivenBroker

FILE_NAME = "t:c.deferred.dat"
AN_ID, ANOTHER_ID = b"0123456789abcdef", b"fedcba9876543210"


def times(directory: MemoryFileStore, state: SyncState | None = None) -> DeferredTimes:
    return DeferredTimes(directory, "t:c", state)


class TestFile:
    @given(st.dictionaries(st.binary(min_size=8, max_size=8).map(lambda it: it.hex().encode()), st.integers(0, 2**63)))
    def test_times_are_read_as_written(self, by_id):
        directory = MemoryFileStore()
        times(directory).write(by_id)
        assert times(directory).by_id == by_id

    def test_unused_times_are_written_again(self):
        directory = MemoryFileStore()
        times(directory).write({AN_ID: 5, ANOTHER_ID: 6})
        found = times(directory)
        del found.by_id[AN_ID]
        found.write({})
        assert times(directory).by_id == {ANOTHER_ID: 6}

    def test_no_times_leave_no_file(self):
        directory = MemoryFileStore()
        times(directory).write({AN_ID: 5})
        times(directory).delete()
        assert directory.files == {}

    def test_invalid_lines_are_ignored(self):
        directory = MemoryFileStore({FILE_NAME: b"\xff\n0123456789abcdef 5\nfedcba9876543210 x\nfedcba98765432"})
        assert times(directory).by_id == {AN_ID: 5}

    @pytest.mark.parametrize("verb", ["read", "written"])
    def test_error_of_the_file_is_reported(self, verb):
        directory = MemoryFileStore({FILE_NAME: b"0123456789abcdef 5\n"})
        state = new_state()
        if verb == "read":
            directory.fail(errno.EIO)
            assert times(directory, state).by_id == {}
        else:
            found = times(directory, state)
            directory.fail(errno.EIO)
            found.write({AN_ID: 6})
        assert state.reports == [f"{FILE_NAME} cannot be {verb}, its messages come at once: Input/output error"]


class TestOverTheEnd:
    """A broker that is stopped and started again."""

    def started(self, directory: MemoryFileStore, *, now: float = 0, **options: Any) -> DrivenBroker:
        options = {"mem_queue_size": 1, "keep_deferred": True, **options}
        storage = DiskStorage(directory, BrokerOptions(**options))
        driven = DrivenBroker(storage=storage, **options)
        driven.now_ns += round(now * NS_PER_S)
        return driven

    def close(self, driven: DrivenBroker) -> None:
        assert driven.broker.close() == []

    def test_deferred_message_waits_for_the_rest_of_its_time(self):
        directory = MemoryFileStore()
        driven = self.started(directory)
        driven.topic().channel(b"c", driven.now_ns)
        driven.publish(b"now")
        driven.publish(b"later", delay=60)
        self.close(driven)

        driven = self.started(directory, now=20)
        consumer = driven.consumer(10)
        assert consumer.bodies() == [b"now"]
        assert len(driven.topic().channels[b"c"].deferred) == 1
        driven.advance(25)
        consumer.feed(b"NOP\n")
        driven.advance(14.999)
        assert [reported for reported in consumer.answers() if not isinstance(reported, bytes)] == []
        driven.advance(0.001)
        assert consumer.bodies() == [b"later"]

    def test_message_due_during_the_stop_is_delivered_at_once(self):
        directory = MemoryFileStore()
        driven = self.started(directory)
        driven.topic().channel(b"c", driven.now_ns)
        driven.publish(b"later", delay=60)
        self.close(driven)
        assert self.started(directory, now=60).consumer().bodies() == [b"later"]

    def test_time_survives_two_restarts_without_a_consumer(self):
        directory = MemoryFileStore()
        driven = self.started(directory)
        driven.topic().channel(b"c", driven.now_ns)
        driven.publish(b"later", delay=60)
        for _ in range(2):
            self.close(driven)
            driven = self.started(directory, now=20)
            driven.topic().channel(b"c", driven.now_ns)
        assert driven.consumer().bodies() == []
        driven.advance(40)
        assert FILE_NAME in directory.files

    def test_message_in_the_topic_keeps_its_whole_delay(self):
        directory = MemoryFileStore()
        driven = self.started(directory)
        driven.publish(b"1", b"2", delay=20)  # one of them has no place in memory
        self.close(driven)
        driven = self.started(directory, now=100)
        consumer = driven.consumer(10)
        assert consumer.bodies() == []
        driven.advance(20)
        assert sorted(consumer.bodies()) == [b"1", b"2"]

    def test_message_is_delivered_at_once_without_the_option(self):
        directory = MemoryFileStore()
        driven = self.started(directory, keep_deferred=False)
        driven.topic().channel(b"c", driven.now_ns)
        driven.publish(b"later", delay=60)
        self.close(driven)
        assert [name for name in directory.files if "deferred" in name] == []
        assert self.started(directory, now=20).consumer().bodies() == [b"later"]

    @pytest.mark.parametrize("what", ["empty", "delete"])
    def test_dropped_messages_leave_no_times(self, what):
        directory = MemoryFileStore()
        driven = self.started(directory)
        driven.topic().channel(b"c", driven.now_ns)
        driven.publish(b"later", delay=60)
        self.close(driven)
        driven = self.started(directory)
        getattr(driven.topic().channel(b"c", driven.now_ns), what)()
        self.close(driven)
        assert FILE_NAME not in directory.files


def test_ephemeral_channel_writes_no_times():
    storage = DiskStorage(MemoryFileStore(), BrokerOptions(keep_deferred=True))
    assert not storage.deferred_times(b"t:c#ephemeral", ephemeral=True).has_file
    assert storage.deferred_times(b"t:c", ephemeral=False).has_file
