from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.errors import OptionError
from nsqkit.testing.inject import inject, messages, publish
from nsqkit.testing.servers import NsqdServer
from nsqkit.testing.snapshot import VERSION, SavedMessage, Snapshot, reset, restore, snapshot
from nsqkit.testing.state import of_broker
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_finish, encode_ready, encode_requeue, encode_subscribe, encode_touch
from nsqkit.wire.frames import OK_FRAME, FrameDecoder, MessageFrame
from tests.broker.core.disk.disks import MemoryFileStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.broker.core.session.session import Session
    from nsqkit.testing.clock import Mode

NOW_NS = 1_700_000_000 * 10**9
S = 10**9
ID = b"0123456789abcdef"


def in_memory() -> Broker:
    return Broker(BrokerOptions(mem_queue_size=100), Random(1))


def on_disk() -> Broker:
    options = BrokerOptions(mem_queue_size=1, max_bytes_per_file=1024)
    return Broker(options, Random(1), DiskStorage(MemoryFileStore(), options))


def durable() -> Broker:
    options = BrokerOptions(durability="fsync", max_bytes_per_file=1024)
    return Broker(options, Random(1), DurableStorage(MemoryFileStore(), options))


every_storage = pytest.mark.parametrize("make", [in_memory, on_disk, durable])


def consume(broker: Broker, rdy_count: int = 5, *, topic: bytes = b"t", channel: bytes = b"c") -> Session:
    session = broker.open_session("10.0.0.1:1", NOW_NS)
    session.receive_data(b"  V2" + encode_subscribe(topic, channel) + encode_ready(rdy_count), NOW_NS)
    return session


def received(broker: Broker, session: Session, now_ns: int = NOW_NS) -> list[MessageFrame]:
    broker.settle(now_ns)
    frames = FrameDecoder().feed(session.data_to_send())
    return [frame for frame in frames if isinstance(frame, MessageFrame)]


def restored(saved: Snapshot, now_ns: int = NOW_NS) -> Broker:
    broker = in_memory()
    restore(broker, saved, now_ns)
    return broker


# ---- the values ------------------------------------------------------------------------------------------------------


@every_storage
def test_snapshot_has_messages_and_counts(make: Callable[[], Broker]) -> None:
    broker = make()
    consumer = consume(broker, 1)
    publish(broker, NOW_NS, "t", b"one", b"two")
    publish(broker, NOW_NS, "t", b"later", defer=5)
    broker.topics[b"t"].channels[b"c"].pause()
    received(broker, consumer)
    inject(broker, NOW_NS, "t", b"x", id=ID, attempts=65535, timestamp=-5)
    (topic,) = snapshot(broker, NOW_NS + S).topics
    (channel,) = topic.channels
    assert (topic.name, topic.paused, topic.messages) == ("t", False, ())
    assert (topic.message_count, topic.message_bytes) == (4, 12)
    assert (channel.name, channel.paused, channel.message_count) == ("c", True, 4)
    assert [(message.body, message.attempts, message.delay_ns) for message in channel.messages] == [
        (b"one", 1, None),
        (b"two", 1, None),
        (b"x", 65535, None),
        (b"later", 1, 4 * S),
    ]
    assert channel.messages[2] == SavedMessage(id=ID, body=b"x", attempts=65535, timestamp_ns=-5)


@every_storage
def test_message_in_flight_waits_before_all_others_with_one_more_attempt(make: Callable[[], Broker]) -> None:
    broker = make()
    consumer = consume(broker, 2)
    publish(broker, NOW_NS, "t", b"one", b"two", b"three")
    held = received(broker, consumer)
    consumer.receive_data(encode_touch(held[0].id), NOW_NS)
    (channel,) = snapshot(broker, NOW_NS).topics[0].channels
    assert [(message.body, message.attempts) for message in channel.messages] == [
        (b"two", 2),
        (b"one", 2),
        (b"three", 1),
    ]
    assert [message.state for message in messages(broker, "t", "c")] == ["in_flight"] * 2 + ["waiting"]


def test_broker_of_a_snapshot_delivers_its_messages() -> None:
    broker = in_memory()
    consumer = consume(broker)
    publish(broker, NOW_NS, "t", b"one")
    publish(broker, NOW_NS, "t", b"later", defer=5)
    received(broker, consumer)
    new = restored(snapshot(broker, NOW_NS + S), NOW_NS + 10 * S)
    again = consume(new)
    assert [(message.body, message.attempts) for message in received(new, again)] == [(b"one", 2)]
    new.handle_deadline(NOW_NS + 14 * S - 1)
    assert received(new, again) == []
    new.handle_deadline(NOW_NS + 14 * S)
    assert [message.body for message in received(new, again)] == [b"later"]


def test_messages_of_a_paused_topic_reach_its_channels_when_it_continues() -> None:
    broker = in_memory()
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"c", NOW_NS)
    topic.pause()
    publish(broker, NOW_NS, "t", b"later", defer=5)
    new = restored(snapshot(broker, NOW_NS), NOW_NS + S)
    assert [message.state for message in messages(new, "t")] == ["deferred"]
    new.topics[b"t"].unpause(NOW_NS + S)
    assert [message.due_ns for message in messages(new, "t", "c")] == [NOW_NS + 6 * S]


def test_ids_after_a_restore_are_later_ones() -> None:
    broker = in_memory()
    publish(broker, NOW_NS, "t", b"x")
    (old,) = messages(broker, "t")
    new = restored(snapshot(broker, NOW_NS))
    assert inject(new, NOW_NS, "t", b"y") > old.id


# ---- clients ---------------------------------------------------------------------------------------------------------


@every_storage
def test_restore_ends_the_sessions_of_all_clients_first(make: Callable[[], Broker]) -> None:
    broker = make()
    saved = snapshot(broker, NOW_NS)
    consumer, idle = consume(broker), broker.open_session("10.0.0.1:2", NOW_NS)
    publish(broker, NOW_NS, "t", b"x", b"y")
    broker.settle(NOW_NS)
    restore(broker, saved, NOW_NS)
    assert of_broker(broker).topics == {}
    assert of_broker(broker).connections == ()
    for session in (consumer, idle):
        assert session.ended
        assert session in broker.take_sessions() or session.has_output
        assert session.data_to_send() == b""
        broker.close_session(session, NOW_NS)
    broker.handle_deadline(NOW_NS + 1000 * S)
    assert of_broker(broker).topics == {}


def test_old_sessions_do_not_affect_the_restored_channels() -> None:
    broker = Broker(BrokerOptions(requeue_on_disconnect=True), Random(1))
    consumer = consume(broker, channel=b"c#ephemeral")
    publish(broker, NOW_NS, "t", b"x")
    received(broker, consumer)
    saved = snapshot(broker, NOW_NS)
    restore(broker, saved, NOW_NS)
    consumer.receive_data(encode_finish(saved.topics[0].channels[0].messages[0].id), NOW_NS)
    broker.close_session(consumer, NOW_NS)
    assert snapshot(broker, NOW_NS) == saved


@every_storage
def test_reset_leaves_nothing(make: Callable[[], Broker]) -> None:
    broker = make()
    consume(broker)
    publish(broker, NOW_NS, "t", b"x")
    publish(broker, NOW_NS, "u", b"x", defer=1)
    reset(broker)
    assert snapshot(broker, NOW_NS) == Snapshot(topics=(), time_ns=0, last_tick=-1)
    publish(broker, NOW_NS, "t", b"y")
    assert of_broker(broker).topic("t").depth == 1


# ---- round trips -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(
        [
            *("publish", "publish", "publish", "defer", "inject", "channel"),
            *("consume", "consume", "finish", "requeue", "defer again", "touch", "close", "time"),
            *("pause topic", "pause channel", "unpause topic"),
        ]
    ),
    max_size=30,
)


def play(broker: Broker, steps: list[str], random: Random) -> int:
    """Have clients do these steps; return the time."""
    now_ns = NOW_NS
    consumers: list[Session] = []
    for step in steps:
        topic = random.choice(("t", "u", "e#ephemeral"))
        consumer = random.choice(consumers) if consumers else None
        held = list(consumer.subscription.in_flight.untouched) if consumer and consumer.subscription else []
        if step in ("publish", "defer"):
            body = random.randbytes(random.randint(1, 20))
            publish(broker, now_ns, topic, body, body, defer=random.randint(1, 9) if step == "defer" else None)
        elif step == "inject":
            inject(broker, now_ns, topic, b"x", channel=random.choice((None, "c")), attempts=65535, timestamp=5)
        elif step == "channel":
            broker.topics.get_or_create(topic.encode()).channel(random.choice((b"c", b"d#ephemeral")), now_ns)
        elif step == "consume":
            channel = random.choice((b"c", b"d#ephemeral"))
            consumers.append(consume(broker, random.randint(0, 3), topic=topic.encode(), channel=channel))
        elif step == "close" and consumer:
            consumers.remove(consumer)
            broker.close_session(consumer, now_ns)
        elif step == "time":
            now_ns += random.choice((S, 5 * S, 61 * S))
            broker.handle_deadline(now_ns)
        elif consumer and held:
            command = {
                "finish": encode_finish(held[0]),
                "requeue": encode_requeue(held[0], 0),
                "defer again": encode_requeue(held[0], 3000),
                "touch": encode_touch(held[0]),
            }.get(step, b"")
            consumer.receive_data(command, now_ns)
        elif "pause" in step and topic.encode() in broker.topics:
            found = broker.topics[topic.encode()]
            if step == "pause topic":
                found.pause()
            elif step == "unpause topic":
                found.unpause(now_ns)
            elif found.channels:
                next(iter(found.channels.values())).pause()
        broker.settle(now_ns)
    return now_ns


@given(steps=STEPS, seed=st.integers(0, 1000), make=st.sampled_from([in_memory, on_disk, durable]))
def test_snapshot_of_a_restored_snapshot_is_equal(steps: list[str], seed: int, make: Callable[[], Broker]) -> None:
    broker = in_memory()
    saved = snapshot(broker, play(broker, steps, Random(seed)))
    assert saved == snapshot(broker, saved.time_ns)
    new = make()
    if make is not in_memory:
        channels = [channel.name for topic in saved.topics for channel in topic.channels]
        if any(name.endswith("#ephemeral") for name in (*channels, *(topic.name for topic in saved.topics))):
            return  # their queues hold no more than memory does
    restore(new, saved, NOW_NS + 500 * S)
    assert snapshot(new, NOW_NS + 500 * S) == saved
    new.handle_deadline(NOW_NS + 500 * S)
    restore(broker, saved, saved.time_ns)
    assert snapshot(broker, saved.time_ns) == saved
    with TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.json")
        saved.save(path)
        assert attrs.astuple(Snapshot.load(path)) == attrs.astuple(saved)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_snapshot_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"version": 99, "what": "ever"}))
    with pytest.raises(OptionError, match=rf"snapshot '.*' has version 99; allowed is version {VERSION}"):
        Snapshot.load(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 1}', '{"version": 1, "topics": [{}]}', '{"version": 1, "topics": 5}'],
)
def test_file_that_is_not_a_snapshot_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"file '.*snapshot\.json' is not a snapshot of a broker"):
        Snapshot.load(path)


# ---- a server --------------------------------------------------------------------------------------------------------


def test_server_is_restored_in_another_one(tmp_path: Path) -> None:
    with NsqdServer() as first:
        first.publish("t", b"one", b"two", defer=5)
        first.snapshot().save(tmp_path / "messages")
    with NsqdServer(data_path=str(tmp_path)) as second:
        second.publish("u", b"x")
        second.restore(Snapshot.load(tmp_path / "messages"))
        assert list(second.topics) == ["t"]
        assert [message.body for message in second.messages("t")] == [b"one", b"two"]


def test_server_disconnects_its_clients_and_restores_the_messages() -> None:
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"x")
        saved = nsqd.snapshot()
        with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
            client.sendall(MAGIC_V2 + encode_subscribe(b"t", b"c") + encode_ready(1))
            assert client.recv(len(OK_FRAME)) == OK_FRAME
            nsqd.restore(saved)
            while client.recv(1000):  # the message, if it was on its way
                pass
        assert nsqd.snapshot() == saved
        assert nsqd.connections == ()


def test_reset_server_is_as_new() -> None:
    with NsqdServer() as nsqd:
        address = nsqd.tcp_address
        with socket.create_connection(split_address(address), timeout=60) as client:
            client.sendall(MAGIC_V2 + encode_subscribe(b"t", b"c"))
            assert client.recv(len(OK_FRAME)) == OK_FRAME
            nsqd.publish("t", b"x")
            nsqd.reset()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert nsqd.topics == {}
        assert nsqd.connections == ()
        assert nsqd.tcp_address == address
        assert len(nsqd.journal) == 0
        with socket.create_connection(split_address(address), timeout=60) as client:
            client.sendall(MAGIC_V2 + encode_subscribe(b"t", b"c"))
            assert client.recv(len(OK_FRAME)) == OK_FRAME


@pytest.mark.parametrize("mode", ["running", "manual"])
def test_journal_of_a_reset_server_has_nothing_of_the_time_before(mode: Mode) -> None:
    with NsqdServer(clock=mode) as nsqd:
        for _ in range(10):
            with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
                client.sendall(MAGIC_V2 + encode_subscribe(b"t", b"c") + encode_ready(100))
                assert client.recv(len(OK_FRAME)) == OK_FRAME
                nsqd.publish("t", *[b"x" * 1000] * 100)
                client.sendall(encode_ready(50) * 50)
                nsqd.reset()
                with suppress(ConnectionResetError):
                    while client.recv(1 << 16):
                        pass
            assert len(nsqd.journal) == 0
            assert nsqd.connections == ()
