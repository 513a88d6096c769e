from __future__ import annotations

import json

import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.storage import DurableStorage
from nsqkit.broker.server import Nsqd
from nsqkit.errors import OptionError

pytestmark = pytest.mark.anyio


def make(path, **options) -> Nsqd:
    given = BrokerOptions(tcp_address="127.0.0.1:0", http_address="", **options)
    return Nsqd(given, data_path=str(path))


def names(path):
    return json.loads(path.joinpath("nsqd.dat").read_bytes())["topics"]


async def test_a_stop_keeps_names_and_messages_for_the_next_start(tmp_path):
    async with make(tmp_path) as nsqd:
        topic = nsqd.broker.topic(b"t")
        topic.channel(b"c", 1).pause()
        topic.put([b"one", b"two"], 1)
        topic.put([b"later"], 1, delay_ns=10**18)
        nsqd.settle()
    assert names(tmp_path) == [{"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]}]
    async with make(tmp_path) as nsqd:
        channel = nsqd.broker.topics[b"t"].channels[b"c"]
        assert channel.paused
        assert (len(channel.queue), len(channel.queue.backend)) == (3, 3)


async def test_the_names_are_written_when_they_change(tmp_path):
    async with make(tmp_path) as nsqd:
        assert names(tmp_path) is None
        nsqd.broker.topic(b"t")
        await nsqd.save()
        assert [topic["name"] for topic in names(tmp_path)] == ["t"]


async def test_names_that_cannot_be_read_refuse_the_start_and_give_the_directory_back(tmp_path):
    tmp_path.joinpath("nsqd.dat").write_text("no names")
    with pytest.raises(OptionError, match="failed to load metadata"):
        async with make(tmp_path):
            pass
    assert tmp_path.joinpath("nsqd.dat").read_text() == "no names"
    tmp_path.joinpath("nsqd.dat").unlink()
    async with make(tmp_path):
        pass


async def test_a_commit_ends_when_files_and_names_are_written(tmp_path):
    async with make(tmp_path, durability="fsync") as nsqd:
        nsqd.broker.topic(b"t").put([b"one"], 1)
        assert await nsqd.committed()
        assert tmp_path.joinpath("t.diskqueue.000000.dat").stat().st_size == 33
        assert [topic["name"] for topic in names(tmp_path)] == ["t"]


async def test_a_commit_that_fails_is_told(tmp_path, monkeypatch):
    async with make(tmp_path, durability="fsync") as nsqd:

        def fail() -> None:
            raise OSError(5, "Input/output error")

        nsqd.broker.topic(b"t").put([b"one"], 1)
        with monkeypatch.context() as broken:
            assert nsqd._persistence is not None
            broken.setattr(nsqd._persistence._data_path, "sync", fail)
            assert not await nsqd.committed()
        assert nsqd.broker.health == "NOK - Input/output error"


async def test_the_queues_are_told_whether_the_names_are_saved(tmp_path):
    async with make(tmp_path, durability="fsync") as nsqd:
        assert nsqd._persistence is not None
        storage = nsqd._persistence.storage
        assert isinstance(storage, DurableStorage)
        assert storage.names_are_saved()
        nsqd.broker.topic(b"t")
        assert not storage.names_are_saved()
        await nsqd.save()
        assert storage.names_are_saved()


async def test_a_message_goes_to_the_channels_without_a_file_of_its_topic(tmp_path):
    async with make(tmp_path, mem_queue_size=0, sync_every=2) as nsqd:
        topic = nsqd.broker.topic(b"t")
        topic.channel(b"c", 1)
        topic.put([b"one"], 1)
        nsqd.settle()
        files = {path.name for path in tmp_path.glob("*.diskqueue.*")}
        assert files == {"t:c.diskqueue.000000.dat", "t:c.diskqueue.meta.dat"}
