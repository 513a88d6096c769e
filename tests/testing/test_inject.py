from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.errors import OptionError
from nsqkit.testing.inject import MessageState, inject, messages, publish
from nsqkit.testing.servers import NsqdServer
from nsqkit.wire.commands import encode_finish, encode_ready, encode_requeue, encode_subscribe, encode_touch
from nsqkit.wire.frames import FrameDecoder, MessageFrame
from tests import strategies
from tests.broker.core.disk.disks import MemoryFileStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.broker.core.session.session import Session

NOW_NS = 1_700_000_000 * 10**9
NOW = datetime.fromtimestamp(1_700_000_000, UTC)
S = 10**9
ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"


def in_memory() -> Broker:
    return Broker(BrokerOptions(mem_queue_size=2), Random(1))


def on_disk() -> Broker:
    options = BrokerOptions(mem_queue_size=1, max_bytes_per_file=1024)
    return Broker(options, Random(1), DiskStorage(MemoryFileStore(), options))


def durable() -> Broker:
    options = BrokerOptions(durability="fsync", max_bytes_per_file=1024)
    return Broker(options, Random(1), DurableStorage(MemoryFileStore(), options))


every_storage = pytest.mark.parametrize("make", [in_memory, on_disk, durable])


@pytest.fixture
def broker() -> Broker:
    return in_memory()


def consume(broker: Broker, rdy_count: int, *commands: bytes, channel: bytes = b"c") -> Session:
    session = broker.open_session("10.0.0.1:1", NOW_NS)
    head = b"  V2" + encode_subscribe(b"t", channel) + encode_ready(rdy_count)
    session.receive_data(head + b"".join(commands), NOW_NS)
    broker.settle(NOW_NS)
    return session


def received(broker: Broker, session: Session) -> list[MessageFrame]:
    """Return the message frames that the broker sends to this consumer."""
    broker.settle(NOW_NS)
    frames = FrameDecoder().feed(session.data_to_send())
    return [frame for frame in frames if isinstance(frame, MessageFrame)]


def bodies(found: list[MessageState] | list[MessageFrame]) -> list[bytes]:
    return [message.body for message in found]


# ---- publish ---------------------------------------------------------------------------------------------------------


def test_published_messages_are_those_of_a_client(broker: Broker) -> None:
    publish(broker, NOW_NS, "t", b"one", b"two")
    topic = broker.topics[b"t"]
    assert (topic.message_count, topic.message_bytes) == (2, 6)
    assert [message.body for message in received(broker, consume(broker, 5))] == [b"one", b"two"]


@pytest.mark.parametrize("defer", [2.5, timedelta(seconds=2.5)], ids=["seconds", "timedelta"])
def test_deferred_publish_is_delivered_at_its_time(broker: Broker, defer: float | timedelta) -> None:
    consumer = consume(broker, 5)
    publish(broker, NOW_NS, "t", b"later", defer=defer)
    assert messages(broker, "t", "c")[0].due_ns == NOW_NS + 5 * S // 2
    broker.handle_deadline(NOW_NS + 5 * S // 2 - 1)
    assert received(broker, consumer) == []
    broker.handle_deadline(NOW_NS + 5 * S // 2)
    assert [message.body for message in received(broker, consumer)] == [b"later"]


# ---- inject ----------------------------------------------------------------------------------------------------------


@every_storage
@pytest.mark.parametrize("channel", [None, "c"])
@pytest.mark.parametrize("attempts", [1, 7, 65535])
def test_consumer_gets_the_chosen_values(make: Callable[[], Broker], channel: str | None, attempts: int) -> None:
    broker = make()
    consumer = consume(broker, 1)
    timestamp = datetime(2020, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=2)))
    inject(broker, NOW_NS, "t", b"x", channel=channel, id=ID, attempts=attempts, timestamp=timestamp)
    (message,) = received(broker, consumer)
    assert (message.id, message.attempts, message.body) == (ID, attempts, b"x")
    assert message.timestamp_ns == 1577927045_000006_000


def test_attempts_wrap_after_65535(broker: Broker) -> None:
    consumer = consume(broker, 1)
    inject(broker, NOW_NS, "t", b"x", id=ID.decode(), attempts=65535)
    assert [message.attempts for message in received(broker, consumer)] == [65535]
    consumer.receive_data(encode_requeue(ID, 0), NOW_NS)
    assert [message.attempts for message in received(broker, consumer)] == [0]


def test_id_is_the_next_one_of_the_broker_by_default(broker: Broker) -> None:
    first, second = (inject(broker, NOW_NS, "t", b"x") for _ in range(2))
    assert first < second
    assert [message.id for message in messages(broker, "t")] == [first, second]
    assert messages(broker, "t")[0].timestamp_ns == NOW_NS


def test_message_for_one_channel_is_in_no_other(broker: Broker) -> None:
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"other", NOW_NS)
    inject(broker, NOW_NS, "t", b"x", channel="c")
    assert len(messages(broker, "t", "c")) == 1
    assert messages(broker, "t", "other") == []
    inject(broker, NOW_NS, "t", b"y")
    assert bodies(messages(broker, "t", "c")) == [b"x", b"y"]
    assert bodies(messages(broker, "t", "other")) == [b"y"]
    assert (topic.message_count, topic.message_bytes) == (1, 1)
    assert [channel.message_count for channel in topic.channels.values()] == [1, 2]


@pytest.mark.parametrize("channel", [None, "c"])
def test_deferred_message_is_delivered_at_its_time(broker: Broker, channel: str | None) -> None:
    consumer = consume(broker, 1)
    inject(broker, NOW_NS, "t", b"x", channel=channel, deferred=3, attempts=4)
    (message,) = messages(broker, "t", "c")
    assert (message.state, message.due_ns) == ("deferred", NOW_NS + 3 * S)
    broker.handle_deadline(NOW_NS + 3 * S)
    assert [message.attempts for message in received(broker, consumer)] == [4]


def test_message_with_the_id_of_a_finished_one_is_delivered(broker: Broker) -> None:
    consumer = consume(broker, 5)
    for _ in range(2):
        inject(broker, NOW_NS, "t", b"x", id=ID)
        assert [message.id for message in received(broker, consumer)] == [ID]
        consumer.receive_data(encode_finish(ID), NOW_NS)


@given(body=st.binary(min_size=1, max_size=20), attempts=st.integers(1, 65535), timestamp=strategies.INT64)
def test_injected_message_is_shown(body: bytes, attempts: int, timestamp: int) -> None:
    broker = in_memory()
    inject(broker, NOW_NS, "t", body, id=ID, attempts=attempts, timestamp=timestamp)
    assert messages(broker, "t") == [
        MessageState(id=ID, body=body, attempts=attempts, timestamp_ns=timestamp, state="waiting")
    ]


# ---- messages --------------------------------------------------------------------------------------------------------


@every_storage
def test_messages_are_shown_and_stay(make: Callable[[], Broker]) -> None:
    broker = make()
    consumer = consume(broker, 2)
    for number in range(60):
        publish(broker, NOW_NS, "t", b"message %02d" % number)
    publish(broker, NOW_NS, "t", b"later", b"later still", defer=5)
    publish(broker, NOW_NS, "t", b"soon", defer=1)
    held = received(broker, consumer)
    consumer.receive_data(encode_finish(held[0].id), NOW_NS)
    received(broker, consumer)
    consumer.receive_data(encode_touch(held[1].id), NOW_NS + S)
    broker.close_session(consumer, NOW_NS)  # messages in flight wait for their timeouts

    for _ in range(2):
        found = messages(broker, "t", "c")
        assert [message.state for message in found] == ["in_flight"] * 2 + ["waiting"] * 57 + ["deferred"] * 3
        assert bodies(found) == [
            *(b"message 02", b"message 01"),
            *(b"message %02d" % number for number in range(3, 60)),
            *(b"soon", b"later", b"later still"),
        ]
        deadlines = [message.due_ns for message in found if message.state != "waiting"]
        assert deadlines == [NOW_NS + due * S for due in (60, 61, 1, 5, 5)]
        assert {message.attempts for message in found} == {1}
    rest = consume(broker, 100)
    assert bodies(received(broker, rest)) == [b"message %02d" % number for number in range(3, 60)]


@every_storage
def test_messages_that_wait_in_a_topic(make: Callable[[], Broker]) -> None:
    broker = make()
    broker.topics.get_or_create(b"t")
    publish(broker, NOW_NS, "t", b"later", defer=5)
    publish(broker, NOW_NS, "t", b"one", b"two")
    found = messages(broker, "t")
    assert bodies(found) == [b"later", b"one", b"two"]
    assert [message.due_ns for message in found] == [None] * 3
    assert found[1].state == "waiting"


def test_delay_that_has_not_begun_is_shown(broker: Broker) -> None:
    publish(broker, NOW_NS, "t", b"later", defer=5)
    assert [message.state for message in messages(broker, "t")] == ["deferred"]


def test_messages_deferred_before_a_restart_are_shown_with_their_times() -> None:
    options = BrokerOptions(keep_deferred=True)
    files = MemoryFileStore()
    first = Broker(options, Random(1), DiskStorage(files, options))
    first.topics.get_or_create(b"t").channel(b"c", NOW_NS)
    publish(first, NOW_NS, "t", b"later", defer=5)
    publish(first, NOW_NS, "t", b"now")
    assert first.close() == []
    second = Broker(options, Random(1), DiskStorage(files, options))
    second.topics.get_or_create(b"t").channel(b"c", NOW_NS)
    assert [(message.body, message.state, message.due_ns) for message in messages(second, "t", "c")] == [
        (b"now", "waiting", None),
        (b"later", "deferred", NOW_NS + 5 * S),
    ]


def test_topic_or_channel_that_does_not_exist_has_no_messages(broker: Broker) -> None:
    assert messages(broker, "t") == messages(broker, "t", "c") == []
    broker.topics.get_or_create(b"t")
    assert messages(broker, "t", "c") == []
    assert list(broker.topics[b"t"].channels) == []


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
        ({"channel": "c!"}, "channel name 'c!' is not valid"),
        ({"body": "text"}, "body is 'text'; allowed is bytes"),
        ({"body": b""}, "body has 0 bytes; allowed is 1 to 1048576"),
        ({"body": bytes(1048577)}, "body has 1048577 bytes"),
        ({"id": "123"}, "id is '123'; allowed are 16 hexadecimal digits"),
        ({"id": "0123456789ABCDEF"}, "id is '0123456789ABCDEF'"),
        ({"id": 5}, "id is 5;"),
        ({"attempts": 0}, "attempts is 0; allowed is 1 to 65535"),
        ({"attempts": 65536}, "attempts is 65536"),
        ({"attempts": True}, "attempts is True"),
        ({"timestamp": datetime(2020, 1, 1)}, r"timestamp is datetime\.datetime\(2020, 1, 1, 0, 0\); allowed"),
        ({"timestamp": 1 << 63}, "timestamp is 9223372036854775808"),
        ({"timestamp": 1.5}, r"timestamp is 1\.5"),
        ({"deferred": -1}, "deferred is -1; allowed is 0 to 3600 seconds"),
        ({"deferred": 3601}, "deferred is 3601"),
        ({"deferred": "5s"}, "deferred is '5s'"),
    ],
)
def test_wrong_values_are_refused(broker: Broker, values: dict[str, Any], text: str) -> None:
    given_values = {"topic": "t", "body": b"x", **values}
    with pytest.raises(OptionError, match=text):
        inject(broker, NOW_NS, given_values.pop("topic"), given_values.pop("body"), **given_values)
    assert list(broker.topics) == []


def test_id_of_another_message_is_refused(broker: Broker) -> None:
    inject(broker, NOW_NS, "t", b"x", id=ID)
    with pytest.raises(OptionError, match="id is '0123456789abcdef', which a message of topic 't' has"):
        inject(broker, NOW_NS, "t", b"y", id=ID)
    consume(broker, 1)
    for channel in ("c", None):
        with pytest.raises(OptionError, match="which a message of channel 'c' of topic 't' has; allowed is another id"):
            inject(broker, NOW_NS, "t", b"y", id=ID, channel=channel)
    inject(broker, NOW_NS, "t", b"y", id=ID, channel="other")
    inject(broker, NOW_NS, "t", b"y", id=OTHER_ID)


def test_publish_checks_its_values(broker: Broker) -> None:
    with pytest.raises(OptionError, match="publish has no message"):
        publish(broker, NOW_NS, "t")
    with pytest.raises(OptionError, match="body has 0 bytes"):
        publish(broker, NOW_NS, "t", b"x", b"")
    with pytest.raises(OptionError, match="defer is -1"):
        publish(broker, NOW_NS, "t", b"x", defer=-1)
    assert list(broker.topics) == []


# ---- a server --------------------------------------------------------------------------------------------------------


def test_server_publishes_injects_and_shows() -> None:
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"one", b"two", defer=5)
        assert nsqd.inject("t", b"x", channel="c", id=ID, attempts=3, timestamp=NOW) == ID
        assert [message.state for message in nsqd.messages("t", "c")] == ["waiting", "deferred", "deferred"]
        assert nsqd.messages("t", "c")[0].timestamp_ns == NOW_NS
        assert nsqd.messages("t") == []
