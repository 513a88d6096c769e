"""The whole broker: sessions, deleted topics and channels, time, and deliveries."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from nsqkit.broker.core.broker import FAULT_PAUSE_NS
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.core.topics.topology import GLOBAL, REGION_LOCAL, ZONE_LOCAL
from nsqkit.wire.commands import CLS, encode_finish, encode_ready, encode_subscribe
from nsqkit.wire.messages import id_of
from tests.broker.core.topics.queues import take_all
from tests.pairs import NS_PER_S, DrivenBroker

NEARNESS: dict[str, Any] = {"topology_zone": "z", "topology_region": "r"}
TOPOLOGY_AWARE = ("topology-aware-consumption",)


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker()


# From a publisher to consumers.


def test_each_channel_gets_each_message_and_its_consumers_share_them(driven):
    first, second = driven.consumer(10, channel=b"a"), driven.consumer(10, channel=b"a")
    all_of_them = driven.consumer(10, channel=b"b")
    driven.client().publish(b"1", b"2", b"3", b"4")
    assert sorted(first.bodies() + second.bodies()) == all_of_them.bodies() == [b"1", b"2", b"3", b"4"]
    assert (first.subscription.message_count, second.subscription.message_count) == (2, 2)


def test_fan_out_shares_one_frame_object(driven):
    sessions = [driven.consumer(1, channel=name).session for name in (b"a", b"b", b"c")]
    driven.publish(b"m")
    frames = [session._buffer._last[-1] for session in sessions]
    assert frames[0] is frames[1] is frames[2]


def test_consumer_can_publish_to_its_own_topic(driven):
    consumer = driven.consumer(1)
    consumer.feed(b"PUB t\n\0\0\0\1m")
    ok, message = consumer.answers()
    assert (ok, message.body) == (b"OK", b"m")


def test_sessions_with_output_are_returned_once_in_order(driven):
    producer, second, first = driven.client(), driven.consumer(5), driven.consumer(5)
    driven.broker.take_sessions()
    first.feed(encode_ready(6))
    producer.feed(b"PUB t\n\0\0\0\1m" * 3)
    assert list(driven.broker.take_sessions()) == [producer.session, second.session, first.session]
    assert list(driven.broker.take_sessions()) == []


def test_same_calls_give_the_same_bytes():
    outputs = []
    for _ in range(2):
        driven = DrivenBroker(seed=3)
        consumers = [driven.consumer(20, sample_rate=50) for _ in range(3)]
        driven.publish(*[b"%d" % number for number in range(40)])
        driven.advance(61)
        outputs.append([consumer.answers() for consumer in consumers])
    assert outputs[0] == outputs[1]


# Nearness.


@pytest.mark.parametrize(
    ("place", "proximity"),
    [
        ({"topology_zone": "z", "topology_region": "r"}, ZONE_LOCAL),
        ({"topology_zone": "y", "topology_region": "r"}, REGION_LOCAL),
        ({"topology_zone": "y", "topology_region": "q"}, GLOBAL),
        ({}, GLOBAL),
    ],
)
def test_proximity_follows_identify_with_the_experiment_only(place, proximity):
    aware = DrivenBroker(enable_experiments=TOPOLOGY_AWARE, **NEARNESS)
    assert aware.consumer(**place).subscription.proximity == proximity
    assert DrivenBroker(**NEARNESS).consumer(**place).subscription.proximity == GLOBAL


def test_nearer_consumers_are_served_first():
    driven = DrivenBroker(enable_experiments=TOPOLOGY_AWARE, **NEARNESS)
    far, near = driven.consumer(10), driven.consumer(2, **NEARNESS)
    driven.publish(b"1", b"2", b"3")
    assert (near.bodies(), far.bodies()) == ([b"1", b"2"], [b"3"])
    near.disconnect()
    driven.publish(b"4")
    assert far.bodies() == [b"4"]


# Consumers that are lost.


def test_messages_of_a_lost_consumer_wait_for_their_timeout_without_an_owner(driven):
    lost, other = driven.consumer(1, msg_timeout=5000), driven.consumer(0)
    driven.publish(b"m")
    message_id = lost.message().id
    lost.disconnect()
    other.feed(encode_ready(5))
    assert other.exchange(encode_finish(message_id)) == [
        b"E_FIN_FAILED FIN %b failed client does not own message" % message_id
    ]
    driven.advance(4.999)
    assert other.answers() == []
    driven.advance(0.001)
    assert other.message().attempts == 2


def test_requeue_on_disconnect_requeues_messages_of_a_lost_consumer_at_once():
    driven = DrivenBroker(requeue_on_disconnect=True)
    lost = driven.consumer(10)
    driven.publish(b"1", b"2", b"3")
    first, _, _ = lost.messages()
    lost.feed(encode_finish(first.id))
    lost.disconnect()
    messages = driven.consumer(10).messages()
    assert [(message.body, message.attempts) for message in messages] == [(b"2", 2), (b"3", 2)]
    assert driven.topic().channels[b"c"].requeue_count == 2
    assert driven.topic().channels[b"c"].timeout_count == 0


def test_messages_of_an_ended_session_wait_for_their_timeout(driven):
    ended, other = driven.consumer(1, msg_timeout=5000), driven.consumer(5)
    driven.publish(b"m")
    message_id = ended.message().id
    ended.feed(b"nonsense\n")
    driven.advance(2)
    ended.disconnect()
    assert driven.topic().channels[b"c"].in_flight_count == 1
    driven.advance(2.999)
    assert other.answers() == []
    driven.advance(0.001)
    assert other.message().id == message_id


def test_messages_of_an_ended_session_time_out_before_it_is_closed(driven):
    ended, other = driven.consumer(1, msg_timeout=1000), driven.consumer(5)
    driven.publish(b"m")
    ended.session.end("for a reason")
    driven.advance(1)
    assert other.message().attempts == 2
    ended.disconnect()
    assert driven.topic().channels[b"c"].in_flight_count == 1


def test_second_close_of_a_session_has_no_effect(driven):
    client = driven.consumer()
    for _ in range(2):
        driven.broker.close_session(client.session, driven.now_ns)
    assert (driven.broker.sessions, driven.topic().channels[b"c"].subscriptions) == ({}, {})


def test_closed_session_has_ended(driven):
    gone, other = driven.consumer(1, msg_timeout=1000), driven.consumer(0)
    driven.publish(b"m")
    driven.broker.close_session(gone.session, driven.now_ns)
    assert not gone.is_alive
    driven.advance(1)
    assert len(gone.subscription.in_flight) == 0
    other.feed(encode_ready(1))
    assert other.message().attempts == 2


def test_incomplete_commands_of_lost_clients_are_not_kept_until_their_deadlines():
    driven = DrivenBroker()
    tracemalloc.start()
    try:
        for _ in range(10):
            client = driven.client()
            client.feed(b"PUB t\n" + (1 << 20).to_bytes(4, "big") + bytes(1 << 19))
            driven.broker.close_session(client.session, driven.now_ns)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 19
    finally:
        tracemalloc.stop()


def test_lost_consumers_leave_no_data(driven):
    for _ in range(100):
        consumer = driven.consumer(1, msg_timeout=1000)
        driven.publish(b"m")
        consumer.disconnect()
        driven.broker.take_sessions()
    driven.advance(1)
    channel = driven.topic().channels[b"c"]
    assert (len(channel.queue), channel.in_flight_count, len(channel._abandoned)) == (100, 0, 0)
    assert driven.broker.next_deadline() is None


# Topics and channels.


def test_topic_is_made_once(driven):
    assert driven.topic(b"t") is driven.topic(b"t")
    assert list(driven.broker.topics) == [b"t"]


def test_deleting_a_channel_ends_its_consumers_and_drops_its_messages(driven):
    holding, idle = driven.consumer(1), driven.consumer(0)
    other = driven.consumer(5, channel=b"other")
    driven.publish(b"1", b"2")
    driven.publish(b"later", delay=9)
    driven.broker.take_sessions()
    driven.broker.delete_channel(b"t", b"c")
    driven.settle()
    assert list(driven.broker.take_sessions()) == [holding.session, idle.session]
    assert (holding.is_alive, idle.is_alive, other.is_alive) == (False, False, True)
    assert holding.end_reason == "channel c of topic t was deleted"
    for client in (holding, idle):
        client.disconnect()
    assert other.bodies() == [b"1", b"2"]
    driven.advance(9)
    assert other.bodies() == [b"later"]
    assert list(driven.topic().channels) == [b"other"]


def test_deleted_channel_can_be_created_again_before_its_consumers_leave(driven):
    old = driven.consumer(1, channel=b"c#ephemeral")
    driven.publish(b"old")
    driven.broker.delete_channel(b"t", b"c#ephemeral")
    new = driven.consumer(1, channel=b"c#ephemeral")
    old.disconnect()
    driven.publish(b"new")
    assert new.bodies() == [b"new"]
    driven.advance(29)
    new.feed(b"NOP\n")
    driven.advance(31)
    assert {message.body for message in new.answers() if not isinstance(message, bytes)} == {b"new"}


def test_deleting_a_topic_ends_the_consumers_of_all_its_channels(driven):
    first, second, other = (
        driven.consumer(1, channel=b"a"),
        driven.consumer(1, channel=b"b"),
        driven.consumer(1, topic=b"u"),
    )
    driven.publish(b"m")
    driven.broker.delete_topic(b"t")
    driven.settle()
    assert [client.is_alive for client in (first, second, other)] == [False, False, True]
    first.disconnect()
    second.disconnect()
    assert list(driven.broker.topics) == [b"u"]
    driven.publish(b"again")
    assert len(driven.topic().queue) == 1


@pytest.mark.parametrize("name", [b"nothing", b"t"])
def test_unknown_topic_or_channel_cannot_be_deleted(driven, name):
    driven.topic(b"t")
    with pytest.raises(KeyError):
        driven.broker.delete_channel(name, b"c")
    with pytest.raises(KeyError):
        driven.broker.delete_topic(b"nothing")


def test_topic_created_again_reuses_no_ids(driven):
    driven.publish(*[b"m"] * 5000)  # more than one tick of the clock has
    before = take_all(driven.topic().queue)
    driven.broker.delete_topic(b"t")
    driven.publish(b"again")
    assert id_of(before[-1]) < id_of(take_all(driven.topic().queue)[0])


def test_deleted_topic_has_no_deadline(driven):
    driven.consumer(1).disconnect()
    driven.publish(b"m", delay=9)
    assert driven.broker.next_deadline() == driven.now_ns + 9 * NS_PER_S
    driven.broker.delete_topic(b"t")
    assert driven.broker.next_deadline() is None


# Ephemeral ones.


def test_ephemeral_channel_is_deleted_with_its_last_consumer(driven):
    first, second = (driven.consumer(1, channel=b"c#ephemeral") for _ in range(2))
    driven.publish(b"1", b"2", b"3")
    first.disconnect()
    assert list(driven.topic().channels) == [b"c#ephemeral"]
    second.disconnect()
    assert list(driven.broker.topics) == [b"t"]
    assert list(driven.topic().channels) == []
    assert driven.broker.next_deadline() is None, "messages in flight are dropped"


def test_ephemeral_channel_remains_while_its_consumer_closes(driven):
    consumer = driven.consumer(1, channel=b"c#ephemeral")
    assert consumer.exchange(CLS) == [b"CLOSE_WAIT"]
    assert list(driven.topic().channels) == [b"c#ephemeral"]
    consumer.disconnect()
    assert list(driven.topic().channels) == []


def test_ephemeral_channel_without_a_consumer_remains_until_its_first_one_leaves(driven):
    driven.topic().channel(b"c#ephemeral", driven.now_ns)
    driven.client().disconnect()
    driven.publish(b"m")
    consumer = driven.consumer(1, channel=b"c#ephemeral")
    assert consumer.bodies() == [b"m"]
    consumer.disconnect()
    assert list(driven.topic().channels) == []


def test_ephemeral_topic_is_deleted_with_its_last_channel_in_the_broker(driven):
    first = driven.consumer(1, topic=b"t#ephemeral", channel=b"a")
    second = driven.consumer(1, topic=b"t#ephemeral", channel=b"b#ephemeral")
    second.disconnect()
    first.disconnect()
    assert list(driven.broker.topics) == [b"t#ephemeral"], "channel a has no consumer, but is not ephemeral"
    driven.broker.delete_channel(b"t#ephemeral", b"a")
    assert list(driven.broker.topics) == []
    third = driven.consumer(1, topic=b"t#ephemeral", channel=b"b#ephemeral")
    third.disconnect()
    assert list(driven.broker.topics) == []


def test_consumer_of_a_deleted_ephemeral_topic_can_disconnect(driven):
    consumer = driven.consumer(1, topic=b"t#ephemeral", channel=b"c#ephemeral")
    driven.broker.delete_topic(b"t#ephemeral")
    consumer.disconnect()
    assert list(driven.broker.topics) == []


def test_ephemeral_overflow_is_dropped_and_answered_with_ok():
    driven = DrivenBroker(mem_queue_size=3)
    driven.client().publish(*[b"%d" % number for number in range(8)], topic=b"t#ephemeral")
    topic = driven.topic(b"t#ephemeral")
    assert (len(topic.queue), topic.message_count) == (3, 8)
    assert driven.consumer(20, topic=b"t#ephemeral").bodies() == [b"0", b"1", b"2"]


def test_overflow_of_other_topics_is_kept_in_order():
    driven = DrivenBroker(mem_queue_size=3)
    bodies = [b"%d" % number for number in range(8)]
    driven.client().publish(*bodies)
    assert driven.consumer(20).bodies() == bodies


# Pausing.


def test_paused_channel_delivers_nothing_until_unpaused(driven):
    consumer, other = driven.consumer(5), driven.consumer(5, channel=b"other")
    channel = driven.topic().channels[b"c"]
    channel.pause()
    driven.publish(b"1")
    driven.publish(b"2", delay=1)
    driven.advance(1)
    assert (consumer.answers(), other.bodies()) == ([], [b"1", b"2"])
    channel.unpause()
    driven.settle()
    assert consumer.bodies() == [b"1", b"2"]


def test_messages_that_return_to_a_paused_channel_of_a_broker_wait(driven):
    consumer = driven.consumer(2, msg_timeout=1000)
    driven.publish(b"1", b"2")
    first, _ = consumer.messages()
    driven.topic().channels[b"c"].pause()
    consumer.feed(b"REQ %b 0\n" % first.id)
    driven.advance(1)
    assert consumer.answers() == []
    driven.topic().channels[b"c"].unpause()
    driven.settle()
    assert [(message.body, message.attempts) for message in consumer.messages()] == [(b"1", 2), (b"2", 2)]


def test_paused_topic_passes_no_messages_to_its_channels(driven):
    consumer = driven.consumer(5)
    driven.topic().pause()
    driven.client().publish(b"m")
    assert consumer.answers() == []
    driven.topic().unpause(driven.now_ns)
    driven.settle()
    assert consumer.bodies() == [b"m"]


# Time.


def test_next_deadline_is_the_earliest(driven):
    assert driven.broker.next_deadline() is None
    now_ns = driven.now_ns
    driven.client()
    assert driven.broker.next_deadline() == now_ns + 30 * NS_PER_S
    driven.consumer(1, msg_timeout=20_000)
    driven.publish(b"m")
    assert driven.broker.next_deadline() == now_ns + 20 * NS_PER_S
    driven.publish(b"m", delay=10)
    assert driven.broker.next_deadline() == now_ns + 10 * NS_PER_S


def test_early_handle_deadline_does_nothing(driven):
    consumer = driven.consumer(1, msg_timeout=20_000)
    driven.publish(b"m")
    deadline_ns = driven.broker.next_deadline()
    for _ in range(3):
        driven.jump(1)
    assert len(consumer.messages()) == 1
    assert driven.broker.next_deadline() == deadline_ns


def test_everything_due_is_handled_after_a_clock_jump(driven):
    consumers = [driven.consumer(1, channel=name, msg_timeout=1000) for name in (b"a", b"b")]
    driven.publish(b"m")
    driven.publish(b"later", delay=5)
    for consumer in consumers:
        assert consumer.message().attempts == 1
        consumer.feed(encode_ready(5))
    driven.jump(29)
    for consumer in consumers:
        assert [message.body for message in consumer.messages()] == [b"m", b"later"]


# Costs, counted and not measured.


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the channels that were delivered from, each time."""
    names: list[bytes] = []
    deliver = Channel.deliver

    def counted(channel: Channel, now_ns: int) -> list[Subscription]:
        names.append(channel.name)
        return deliver(channel, now_ns)

    monkeypatch.setattr(Channel, "deliver", counted)
    return names


def test_idle_channels_and_sessions_cost_nothing(driven, delivered):
    consumer = driven.consumer(1, channel=b"busy")
    for number in range(100):
        driven.consumer(1, topic=b"idle", channel=b"c%d" % number)
    delivered.clear()
    driven.broker.take_sessions()
    driven.client().publish(b"m")
    consumer.feed(encode_finish(consumer.message().id))
    assert set(delivered) == {b"busy"}
    assert len(driven.broker.take_sessions()) == 2
    assert driven.broker.take_sessions() == []


def test_one_buffer_of_publishes_is_one_delivery(driven, delivered):
    driven.consumer(2500)
    delivered.clear()
    driven.client().feed(b"PUB t\n\0\0\0\1m" * 1000)
    assert delivered == [b"c"]
    assert driven.topic().channels[b"c"].in_flight_count == 1000


def test_first_channel_gets_messages_that_waited_in_the_topic(driven):
    driven.client().publish(b"1", b"2")
    assert driven.client().exchange(encode_subscribe(b"t", b"c"), encode_ready(1))[0] == b"OK"
    assert (len(driven.topic().queue), driven.topic().channels[b"c"].in_flight_count) == (0, 1)


# Errors of our own.


def fail(*_: object) -> None:
    raise KeyError("an internal error")


def test_error_in_handle_deadline_ends_one_session(driven, monkeypatch):
    good, bad = driven.client(), driven.client()
    works = type(bad.session).handle_deadline
    monkeypatch.setattr(
        type(bad.session),
        "handle_deadline",
        lambda session, now_ns: fail() if session is bad.session else works(session, now_ns),
    )
    driven.advance(30)
    assert bad.session.ended
    assert bad.end_reason == "internal error"
    assert good.answers() == [b"_heartbeat_"]


def test_failed_delivery_is_repeated_and_loses_nothing(driven, monkeypatch):
    consumer = driven.consumer(1)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "deliver", fail)
        assert driven.client().exchange(b"PUB t\n\0\0\0\1m") == [b"OK"]
    driven.advance(FAULT_PAUSE_NS / NS_PER_S)
    assert consumer.bodies() == [b"m"]


@pytest.mark.parametrize("command", [b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1x", b"SUB t c\n", b"PUB t\n\0\0\0\1x"])
def test_queue_that_cannot_be_opened_refuses_the_command(driven, monkeypatch, command):
    def cannot(*_: object, **__: object) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(driven.broker.storage, "open_queue", cannot)
    client = driven.client()
    verb = command.split()[0]
    assert client.exchange(command) == [b"E_%b_FAILED %b failed Permission denied" % (verb, verb)]
    assert not client.is_alive
