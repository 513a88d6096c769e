from __future__ import annotations

import errno

import pytest

from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.batch import PART_COUNT_MAX, Batch
from nsqkit.wire.commands import encode_multi_publish, encode_publish, encode_subscribe
from tests.broker.core.disk.disks import MemoryFileStore
from tests.pairs import DrivenBroker

COUNT = 3 * PART_COUNT_MAX + 1
MPUB = encode_multi_publish(b"t", [b"x"] * COUNT)


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker(mem_queue_size=2 * COUNT)


def batch(driven: DrivenBroker, count: int) -> Batch:
    return Batch(driven.broker.topics, b"t", [b"%d" % number for number in range(count)])


def depth(driven: DrivenBroker) -> int:
    return len(driven.topic().queue)


def test_each_part_is_bounded_and_the_last_one_is_announced(driven):
    parts = batch(driven, COUNT)
    depths = []
    while parts.put_part(driven.now_ns):
        depths.append(depth(driven))
    assert depths == [PART_COUNT_MAX, 2 * PART_COUNT_MAX, 3 * PART_COUNT_MAX]
    assert depth(driven) == COUNT
    parts.put_rest(driven.now_ns)
    assert depth(driven) == COUNT
    assert not batch(driven, PART_COUNT_MAX).put_part(driven.now_ns)


def test_messages_of_a_batch_are_put_once_and_in_order(driven):
    parts = batch(driven, COUNT)
    assert parts.put_part(driven.now_ns)
    parts.put_rest(driven.now_ns)
    frames = driven.topic().queue.take(COUNT + 1, 1 << 30)
    assert [frame[34:] for frame in frames] == [b"%d" % number for number in range(COUNT)]


def test_large_mpub_is_put_in_turns_and_answered_once(driven):
    client = driven.client()
    client.feed(MPUB, encode_publish(b"t", b"after"))
    depths = [depth(driven)]
    while client.session.has_input:
        client.session.process_input(driven.now_ns)
        depths.append(depth(driven))
    steps = [after - before for before, after in zip([0, *depths], depths, strict=False)]
    assert max(steps) <= PART_COUNT_MAX
    assert depth(driven) == COUNT + 1
    assert client.session.pub_counts == {b"t": COUNT + 1}
    assert client.answers() == [b"OK", b"OK"]


@pytest.mark.parametrize("how", ["eof", "end", "close"])
def test_started_batch_is_put_whole_when_its_session_ends(driven, how):
    client = driven.client()
    client.feed(MPUB)
    assert 0 < depth(driven) < COUNT
    match how:
        case "eof":
            client.session.receive_eof(driven.now_ns)
            client.work()
        case "end":
            client.session.end("the test ends it")
        case _:
            driven.broker.close_session(client.session, driven.now_ns)
    assert depth(driven) == COUNT
    assert not client.is_alive


def test_batch_with_an_error_at_its_end_is_not_begun(driven):
    client = driven.client()
    bad = MPUB[:-5] + b"\0\0\0\0x"
    client.feed(bad)
    client.work()
    assert depth(driven) == 0
    assert client.answers() == [b"E_BAD_MESSAGE MPUB invalid message(%d) body size 0" % (COUNT - 1)]


def test_full_disk_refuses_the_rest_of_a_batch(driven, monkeypatch):
    client = driven.client()
    client.feed(MPUB)

    def put(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(driven.topic(), "put", put)
    client.work()
    assert client.answers() == [b"E_MPUB_FAILED MPUB failed No space left on device"]
    assert depth(driven) == PART_COUNT_MAX


@pytest.mark.parametrize("room", [0, 2, PART_COUNT_MAX, PART_COUNT_MAX + 3, 2 * PART_COUNT_MAX])
def test_full_disk_refuses_one_pub_of_a_run_and_those_before_it_are_acknowledged(room: int):
    """Otherwise the publisher would take the refusal for that of the first PUB, and send the others again."""
    directory = MemoryFileStore()
    options = BrokerOptions(mem_queue_size=room)
    driven = DrivenBroker(storage=DiskStorage(directory, options), mem_queue_size=room)
    driven.topic()
    directory.fail(errno.ENOSPC)
    client = driven.client()
    client.feed(b"".join(encode_publish(b"t", b"%d" % number) for number in range(2 * PART_COUNT_MAX + 1)))
    client.work()
    assert client.answers() == [b"OK"] * room + [b"E_PUB_FAILED PUB failed No space left on device"]
    assert depth(driven) == driven.topic().message_count == room
    assert client.session.pub_counts == ({b"t": room} if room else {})
    other = driven.client()
    other.feed(encode_multi_publish(b"t", [b"x"] * PART_COUNT_MAX))
    assert other.answers() == [b"E_MPUB_FAILED MPUB failed No space left on device"]
    assert depth(driven) == room, "of an MPUB nothing is kept, if it is not too large for one part"


def test_first_messages_of_a_batch_are_delivered_before_the_last_is_put(driven):
    consumer = driven.client()
    assert consumer.exchange(encode_subscribe(b"t", b"c"), b"RDY 1\n") == [b"OK"]
    client = driven.client()
    client.feed(MPUB)
    assert len(consumer.messages()) == 1
