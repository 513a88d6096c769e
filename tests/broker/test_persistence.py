from __future__ import annotations

import decimal
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nsqkit.broker.core import metadata
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.persistence import Persistence
from nsqkit.broker.server import Nsqd
from nsqkit.errors import OptionError
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.broker.core.disk.disks import MemoryFile, MemoryFileStore
from tests.broker.core.topics.queues import take_all

pytestmark = pytest.mark.anyio


def make(path, **options) -> Nsqd:
    given = BrokerOptions(tcp_address="127.0.0.1:0", http_address="", **options)
    return Nsqd(given, data_path=str(path))


def names(path):
    return json.loads(path.joinpath("nsqd.dat").read_bytes())["topics"]


async def test_stop_keeps_names_and_messages(tmp_path):
    async with make(tmp_path) as nsqd:
        topic = nsqd.broker.topics.get_or_create(b"t")
        topic.channel(b"c", 1).pause()
        topic.put([b"one", b"two"], 1)
        topic.put([b"later"], 1, delay_ns=10**18)
        nsqd.process_changes()
    assert names(tmp_path) == [{"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]}]
    async with make(tmp_path) as nsqd:
        channel = nsqd.broker.topics[b"t"].channels[b"c"]
        assert channel.paused
        assert (len(channel.queue), len(channel.queue.backend)) == (3, 3)


async def test_names_are_written_when_they_change(tmp_path):
    async with make(tmp_path) as nsqd:
        assert names(tmp_path) is None
        nsqd.broker.topics.get_or_create(b"t")
        await nsqd.save()
        assert [topic["name"] for topic in names(tmp_path)] == ["t"]


async def test_unreadable_names_fail_the_start_and_unlock_the_directory(tmp_path):
    tmp_path.joinpath("nsqd.dat").write_text("no names")
    with pytest.raises(OptionError, match="failed to load metadata"):
        async with make(tmp_path):
            pass
    assert tmp_path.joinpath("nsqd.dat").read_text() == "no names"
    tmp_path.joinpath("nsqd.dat").unlink()
    async with make(tmp_path):
        pass


async def test_commit_ends_after_files_and_names_are_written(tmp_path):
    async with make(tmp_path, durability="fsync") as nsqd:
        nsqd.broker.topics.get_or_create(b"t").put([b"one"], 1)
        assert await nsqd.committed()
        assert tmp_path.joinpath("t.diskqueue.000000.dat").stat().st_size == 33
        assert [topic["name"] for topic in names(tmp_path)] == ["t"]


async def test_failed_commit_is_returned(tmp_path, monkeypatch):
    async with make(tmp_path, durability="fsync") as nsqd:

        def fail() -> None:
            raise OSError(5, "Input/output error")

        nsqd.broker.topics.get_or_create(b"t").put([b"one"], 1)
        with monkeypatch.context() as broken:
            assert nsqd._persistence is not None
            broken.setattr(nsqd._persistence._files, "sync", fail)
            assert not await nsqd.committed()
        assert nsqd.broker.health == "NOK - Input/output error"


async def test_commit_that_fails_has_failed_for_what_was_put_meanwhile(tmp_path, monkeypatch):
    async with make(tmp_path, durability="fsync") as nsqd, anyio.create_task_group() as tasks:
        topic = nsqd.broker.topics.get_or_create(b"t")
        results = []

        async def publish() -> None:
            topic.put([b"two"], 1)
            results.append(await nsqd.committed())

        def fail() -> None:
            if len(topic.queue) == 1:
                anyio.from_thread.run_sync(tasks.start_soon, publish)
            raise OSError(5, "Input/output error")

        topic.put([b"one"], 1)
        with monkeypatch.context() as failing:
            assert nsqd._persistence is not None
            failing.setattr(nsqd._persistence._files, "sync", fail)
            assert not await nsqd.committed()
        await anyio.wait_all_tasks_blocked()
        assert results == [False]
        assert await nsqd.committed()


async def test_commit_that_fails_has_failed_for_a_batch_of_which_it_has_a_part(tmp_path, monkeypatch):
    async with make(tmp_path, durability="fsync") as nsqd:
        assert nsqd.broker.group_commit is not None
        assert nsqd._persistence is not None
        first_ticket = nsqd.broker.group_commit.ticket
        nsqd.broker.topics.get_or_create(b"t").put([b"one"], 1)
        with monkeypatch.context() as broken:
            broken.setattr(nsqd._persistence._files, "sync", mock.Mock(side_effect=OSError(5, "Input/output error")))
            assert not await nsqd.committed()
        nsqd.broker.topics.get_or_create(b"t").put([b"two"], 1)
        assert not await nsqd.committed(first_ticket)
        assert await nsqd.committed()


async def test_commit_fails_if_its_names_are_written_too_late_for_its_sync(tmp_path, monkeypatch):
    async with make(tmp_path, durability="fsync") as nsqd:
        persistence = nsqd._persistence
        assert persistence is not None
        files = persistence._files
        sync_names = files.sync

        def fail(name: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def sync() -> None:
            sync_names()
            working.undo()
            assert anyio.from_thread.run(persistence.save, nsqd.broker)

        nsqd.broker.topics.get_or_create(b"t").put([b"one"], 1)
        with monkeypatch.context() as working:
            working.setattr(files, "replace", fail)
            working.setattr(files, "sync", sync)
            assert not await nsqd.committed()
        assert await nsqd.committed()


async def test_syncs_run_in_worker_threads(tmp_path, monkeypatch):
    """Every fsync, but those of the start and the stop, is called in a worker thread."""
    threads: list[int] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        threads.append(threading.get_ident())
        fsync(descriptor)

    for durability in ("nsqd", "fsync"):
        path = tmp_path / durability
        path.mkdir()
        async with make(path, durability=durability, mem_queue_size=0, sync_every=2, max_bytes_per_file=100) as nsqd:
            monkeypatch.setattr(os, "fsync", record)
            topic = nsqd.broker.topics.get_or_create(b"t")
            channel = topic.channel(b"c", 1)
            for _ in range(5):
                topic.put([b"message"] * 7, 1)
                channel.queue.finish(channel.queue.take(9, 1 << 20))
                nsqd.process_changes()
                await nsqd.committed()
                while nsqd.broker.storage.wants_sync:  # type: ignore[union-attr]
                    await anyio.lowlevel.checkpoint()
            monkeypatch.undo()
        assert threads
        assert threading.get_ident() not in threads
        threads.clear()


async def test_message_for_channels_makes_no_file_of_its_topic(tmp_path):
    async with make(tmp_path, mem_queue_size=0, sync_every=2) as nsqd:
        topic = nsqd.broker.topics.get_or_create(b"t")
        topic.channel(b"c", 1)
        topic.put([b"one"], 1)
        nsqd.process_changes()
        files = {path.name for path in tmp_path.glob("*.diskqueue.*")}
        assert files == {"t:c.diskqueue.000000.dat", "t:c.diskqueue.meta.dat"}


# ---- one damaged file ----------------------------------------------------------------------------------------------

MODES: dict[str, dict[str, Any]] = {
    "memory": {},
    "disk": {"mem_queue_size": 0},
    "deferred": {"keep_deferred": True},
    "fsync": {"durability": "fsync", "keep_deferred": True},
}
FILE_SIZE = 200
NUMBERS = [0, 1, 50, 10**6, 10**12, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70, 10**4999]


class Disk(MemoryFileStore):
    """A data path of which one file cannot be opened.

    Attributes:
        refused: that file, and the number of the error.
    """

    def __init__(self, files: dict[str, bytes], refused: tuple[str, int] = ("", 0)) -> None:
        super().__init__(files)
        self.refused = refused

    def lock(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _refuse(self, name: str, *numbers: int) -> None:
        if name == self.refused[0] and self.refused[1] in numbers:
            raise OSError(self.refused[1], os.strerror(self.refused[1]), name)

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        self._refuse(name, errno.EISDIR, errno.EACCES)
        return super().open(name, create=create)

    def read(self, name: str) -> bytes | None:
        self._refuse(name, errno.EISDIR, errno.EACCES)
        return super().read(name)

    def rename(self, name: str, new_name: str) -> None:
        self._refuse(new_name, errno.EISDIR)  # a file does not take a directory's name
        super().rename(name, new_name)
        if self.refused[0] in (name, new_name):
            self.refused = (new_name if name == self.refused[0] else "", self.refused[1])

    def remove(self, name: str) -> None:
        self._refuse(name, errno.EISDIR)
        super().remove(name)


@asynccontextmanager
async def running(disk: Disk, **options: Any) -> AsyncIterator[Broker]:
    """Start and stop a broker on a disk."""
    given_options = BrokerOptions(max_bytes_per_file=FILE_SIZE, **options)
    with mock.patch("nsqkit.broker.persistence.DirectoryFileStore", return_value=disk):
        persistence = Persistence("disk", given_options, after=lambda: None)
    broker = Broker(given_options, Random(1), persistence.storage)
    persistence.open(broker, 1)
    yield broker
    persistence.close(broker)


def bodies_in(broker: Broker, name: bytes) -> list[bytes]:
    """Return all messages of a topic and its channel, without an order."""
    topic = broker.topics[name]
    channel = topic.channels[b"c"]
    frames = [*take_all(topic.queue), *take_all(channel.queue), *channel.deferred.remove_everything()]
    return sorted(frame[FRAME_HEADER_LENGTH:] for frame in frames)


BODIES = [b"%d" % number for number in range(9)]


async def stopped(**options: Any) -> dict[str, bytes]:
    """Return the files of a broker that was stopped with messages of two topics."""
    disk = Disk({})
    async with running(disk, **options) as broker:
        for name in (b"t", b"u"):
            topic = broker.topics.get_or_create(name)
            topic.channel(b"c", 1)
            topic.put(BODIES[:4], 1)
            topic.put(BODIES[4:6], 1, delay_ns=10**18)
            topic.pause()
            topic.put(BODIES[6:], 1)
    return disk.files


def damages(data: bytes) -> st.SearchStrategy[bytes]:
    """Return damaged versions of the bytes of a file."""
    numbers = st.sampled_from(NUMBERS).map(lambda number: str(decimal.Decimal(number)).encode())
    meta = st.lists(numbers, min_size=5, max_size=5).map(lambda each: b"%s\n%s,%s\n%s,%s\n" % tuple(each))
    places = st.integers(0, len(data))
    cut = places.map(lambda place: data[:place])
    other = st.tuples(places, st.binary(max_size=8)).map(
        lambda found: data[: found[0]] + found[1] + data[found[0] + len(found[1]) :]
    )
    return st.one_of(st.just(b""), meta, cut, other, st.binary(max_size=40))


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
async def test_damaged_file_affects_no_other_topic(mode, data):
    files = await stopped(**MODES[mode])
    damaged = data.draw(st.sampled_from([name for name in files if not name.startswith(("nsqd.dat", "u"))]))
    number = data.draw(st.sampled_from([0, errno.EISDIR, errno.EACCES]))
    disk = Disk({**files, damaged: data.draw(damages(files[damaged]))}, (damaged, number))
    async with running(disk, **MODES[mode]) as broker:
        assert set(broker.topics) == {b"t", b"u"}
        broker.topics[b"u"].put([b"new"], 1)
        with suppress(OSError):
            broker.topics[b"t"].put([b"new"], 1)
    async with running(disk, **MODES[mode]) as broker:
        assert bodies_in(broker, b"u") == sorted([*BODIES, b"new"])
        with suppress(OSError):
            bodies_in(broker, b"t")


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[" * 10**5, b'{"topics":' * 10**5, b"9" * 5000])))
async def test_unreadable_names_are_reported_in_one_line(document):
    disk = Disk({metadata.FILE_NAME: document})
    with pytest.raises(OptionError, match=r"nsqd\.dat") as caught:
        async with running(disk):
            assume(False)  # by chance it was an empty object, or null
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    assert disk.files[metadata.FILE_NAME] == document


@pytest.mark.parametrize("number", [errno.EISDIR, errno.EACCES])
async def test_error_of_the_names_contains_the_file_name(number):
    with pytest.raises(OSError, match=r"nsqd\.dat") as caught:
        async with running(Disk({metadata.FILE_NAME: b"{}"}, (metadata.FILE_NAME, number))):
            pass
    assert "nsqd.dat" in str(caught.value.strerror)


# ---- stop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["nsqd", "fsync"])
async def test_stop_keeps_the_messages_of_many_topics(tmp_path, durability):
    wanted = {b"t%d" % number: [b"%d" % number] for number in range(100)}
    async with make(tmp_path, durability=durability) as nsqd:
        for name, bodies in wanted.items():
            nsqd.broker.topics.get_or_create(name).put(bodies, 1)
    async with make(tmp_path, durability=durability) as nsqd:
        found = {name: take_all(topic.queue) for name, topic in nsqd.broker.topics.items()}
    assert {name: [frame[FRAME_HEADER_LENGTH:] for frame in frames] for name, frames in found.items()} == wanted


async def test_stop_syncs_each_file_and_all_names_once():
    disk = Disk({})
    async with running(disk) as broker:
        for number in range(50):
            broker.topics.get_or_create(b"t%d" % number).put([b"m"], 1)
        assert broker.storage.guids.tick >= 0
        before = disk.sync_count, disk.operation_count
    assert disk.sync_count - before[0] == 2 * 50 + 2, "two files of each topic, nsqd.dat and the mark of the ids"
    assert disk.operation_count - before[1] <= 12 * 50 + 20
    names = set(disk.files)
    assert set(disk.power_cut(Random(1)).files) == names, "all names are synced"


async def test_stop_without_names_keeps_the_messages_of_a_new_channel_in_the_topic():
    disk = Disk({})
    async with running(disk, durability="fsync") as broker:
        broker.topics.get_or_create(b"t").put([b"m"], 1)
    async with running(disk, durability="fsync") as broker:
        channel = broker.topics[b"t"].channel(b"c", 1)
        assert len(channel.queue) == 1
        disk.fail(errno.ENOSPC, times=1)
    async with running(disk, durability="fsync") as broker:
        topic = broker.topics[b"t"]
        assert not topic.channels
        assert [frame[FRAME_HEADER_LENGTH:] for frame in topic.queue.messages()] == [b"m"]
