"""A session of the broker, in bytes: each command in each state, and timeouts."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.session.auth import decode_auth_state
from nsqkit.broker.core.session.command_rules import TRANSITIONS, State
from nsqkit.broker.core.session.frame_buffer import OUTBOX_SIZE_MAX
from nsqkit.broker.core.session.session import SHORT_TURNS_NS
from nsqkit.broker.core.session.turns import SHORT_TURN_WORDS_MAX, TURN_WORDS_MAX
from nsqkit.errors import RequestFailed
from nsqkit.wire.commands import (
    CLS,
    MAGIC_V2,
    encode_auth,
    encode_deferred_publish,
    encode_finish,
    encode_identify,
    encode_multi_publish,
    encode_publish,
    encode_ready,
    encode_requeue,
    encode_subscribe,
    encode_touch,
)
from nsqkit.wire.frames import OK_FRAME, FrameDecoder, MessageFrame, Response
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests import strategies
from tests.pairs import NS_PER_S, START_NS, DrivenBroker, DrivenClient

NS_PER_MS = 1_000_000
NOBODYS_ID = b"0123456789abcdef"
NOBODYS_FINISH = encode_finish(NOBODYS_ID)
PUB = encode_publish(b"t", b"m")
HEARTBEAT = b"_heartbeat_"

COMMANDS = {
    b"IDENTIFY": encode_identify(b"{}"),
    b"AUTH": encode_auth(b"secret"),
    b"SUB": encode_subscribe(b"t", b"c"),
    b"PUB": PUB,
    b"MPUB": encode_multi_publish(b"t", [b"1", b"2"]),
    b"DPUB": encode_deferred_publish(b"t", b"m", 1),
    b"NOP": b"NOP\n",
    b"RDY": encode_ready(1),
    b"FIN": NOBODYS_FINISH,
    b"REQ": encode_requeue(NOBODYS_ID, 0),
    b"TOUCH": encode_touch(NOBODYS_ID),
    b"CLS": CLS,
}
ANSWERS: dict[bytes, list[bytes]] = {
    **{verb: [b"OK"] for verb in (b"IDENTIFY", b"SUB", b"PUB", b"MPUB", b"DPUB")},
    b"NOP": [],
    b"RDY": [],
    b"AUTH": [b"E_AUTH_DISABLED AUTH disabled"],
    b"FIN": [b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"],
    b"REQ": [b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"],
    b"TOUCH": [b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight"],
    b"CLS": [b"CLOSE_WAIT"],
}


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker()


def client_in(driven: DrivenBroker, state: State) -> DrivenClient:
    client = driven.client()
    if state is State.IDENTIFIED:
        assert client.exchange(COMMANDS[b"IDENTIFY"]) == [b"OK"]
    elif state is not State.INIT:
        assert client.exchange(COMMANDS[b"SUB"]) == [b"OK"]
    if state is State.CLOSING:
        assert client.exchange(CLS) == [b"CLOSE_WAIT"]
    assert client.session.state == state
    return client


def refusal(client: DrivenClient, *commands: bytes) -> bytes:
    """Send commands that are fatal; return the one answer."""
    (answered,) = client.exchange(*commands, PUB)
    assert isinstance(answered, bytes)
    assert not client.is_alive
    assert client.exchange(PUB) == [], "input after a refusal is ignored"
    assert client.end_reason == answered.decode("utf-8", "surrogateescape")
    return answered


def messages_after(ns: int, driven: DrivenBroker, client: DrivenClient) -> list[MessageFrame]:
    """Advance the clock in one step, send a NOP, and return the answers other than heartbeats."""
    driven.now_ns += ns
    client.feed(b"NOP\n")
    driven.jump(0)
    return [answer for answer in client.answers() if isinstance(answer, MessageFrame)]


# States.


@pytest.mark.parametrize("state", [State.INIT, State.IDENTIFIED, State.SUBSCRIBED, State.CLOSING])
@pytest.mark.parametrize("verb", COMMANDS, ids=bytes.decode)
def test_each_command_in_each_state(driven, verb, state):
    client = client_in(driven, state)
    if verb.decode() in TRANSITIONS[state]:
        assert client.exchange(COMMANDS[verb]) == ANSWERS[verb]
        assert client.is_alive == (verb != b"AUTH")
    else:
        assert refusal(client, COMMANDS[verb]) == b"E_INVALID cannot %b in current state" % verb


def test_table_of_commands_is_complete():
    assert COMMANDS.keys() == ANSWERS.keys()
    events = {event for events in TRANSITIONS.values() for event in events}
    assert {verb.decode() for verb in COMMANDS} == events - {"end"}


@pytest.mark.parametrize("verb", [b"IDENTIFY", b"AUTH", b"SUB"])
def test_state_is_checked_before_anything_else(driven, verb):
    client = client_in(driven, State.SUBSCRIBED)
    assert refusal(client, verb + b"\n") == b"E_INVALID cannot %b in current state" % verb


def test_wrong_magic_is_refused_by_the_session(driven):
    session = driven.broker.open_session("10.0.0.1:1", START_NS)
    session.receive_data(b"  V1", START_NS)
    assert session.data_to_send().endswith(b"E_BAD_PROTOCOL")
    assert session.ended


# Words.


@pytest.mark.parametrize(
    ("state", "command", "answer"),
    [
        (State.INIT, b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
        (State.INIT, b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (State.INIT, b"SUB  c\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
        (State.INIT, b"SUB t\xff c\n", b'E_BAD_TOPIC SUB topic name "t\\xff" is not valid'),
        (State.INIT, b"SUB t \n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (State.INIT, b"SUB t c$\n", b'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
        (State.INIT, b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (State.INIT, b"PUB t$\n", b'E_BAD_TOPIC PUB topic name "t$" is not valid'),
        (State.INIT, b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
        (State.INIT, b"MPUB t$\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t$" is not valid'),
        (State.INIT, b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
        (State.INIT, b"DPUB t$ x\n", b'E_BAD_TOPIC DPUB topic name "t$" is not valid'),
        (State.INIT, b"DPUB t +1\n", b"E_INVALID DPUB could not parse timeout +1"),
        (State.INIT, b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (
            State.INIT,
            b"DPUB t %d\n" % ((1 << 64) - 1),
            b"E_INVALID DPUB timeout %d out of range 0-3600000" % ((1 << 64) - 1),
        ),
        (State.INIT, b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
        (State.INIT, b"\n", b"E_INVALID invalid command "),
        (State.INIT, b"pub t\n", b"E_INVALID invalid command pub"),
        (State.INIT, b"\xff\xfe x\n", b"E_INVALID invalid command \xff\xfe"),
        (State.SUBSCRIBED, b"RDY x\n", b"E_INVALID RDY could not parse count x"),
        (State.SUBSCRIBED, b"RDY +1\n", b"E_INVALID RDY could not parse count +1"),
        (State.SUBSCRIBED, b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (State.SUBSCRIBED, b"RDY 18446744073709551615\n", b"E_INVALID RDY count -1 out of range 0-2500"),
        (State.SUBSCRIBED, b"FIN\n", b"E_INVALID FIN insufficient number of params"),
        (State.SUBSCRIBED, b"FIN 0123456789abcde\n", b"E_INVALID invalid message ID"),
        (State.SUBSCRIBED, b"FIN 0123456789abcdef0\n", b"E_INVALID invalid message ID"),
        (State.SUBSCRIBED, b"REQ 0123456789abcdef\n", b"E_INVALID REQ insufficient number of params"),
        (State.SUBSCRIBED, b"REQ x x\n", b"E_INVALID invalid message ID"),
        (State.SUBSCRIBED, b"REQ 0123456789abcdef x\n", b"E_INVALID REQ could not parse timeout x"),
        (State.SUBSCRIBED, b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
        (State.SUBSCRIBED, b"TOUCH x\n", b"E_INVALID invalid message ID"),
    ],
)
def test_invalid_words_are_refused_with_the_text_of_nsqd(driven, state, command, answer):
    assert refusal(client_in(driven, state), command) == answer


def test_further_words_are_ignored(driven):
    consumer = driven.consumer()
    assert consumer.exchange(b"RDY 1 2 3\r\n", b"NOP x\n", b"FIN %b x\n" % NOBODYS_ID) == ANSWERS[b"FIN"]
    assert driven.client().exchange(b"SUB t c x\n") == [b"OK"]


def test_line_without_end_ends_the_session_without_an_answer(driven):
    client = driven.client()
    assert client.exchange(b"x" * 16384 + b"\n") == []
    assert not client.is_alive
    assert client.end_reason == "a command line is longer than 16384 bytes"


# IDENTIFY.


def test_identify_is_answered_with_ok_or_the_grant(driven):
    client = driven.client()
    assert client.exchange(encode_identify(b'{"heartbeat_interval": 2000}')) == [b"OK"]
    granted = client.identify(msg_timeout=2500, sample_rate=7, client_id="me", hostname="here")
    assert (granted["msg_timeout"], granted["sample_rate"], granted["max_rdy_count"]) == (2500, 7, 2500)
    assert (client.session.identity.client_id, client.session.identity.hostname) == ("me", "here")


def test_client_is_named_by_its_address_before_identify(driven):
    session = driven.client().session
    assert (session.identity.client_id, session.identity.hostname) == ("10.0.0.1", "10.0.0.1")


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (b'{"msg_timeout": 999}', b"E_BAD_BODY IDENTIFY msg timeout (999) is invalid"),
        (b"nonsense", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (
            b'{"feature_negotiation": true, "snappy": true, "deflate": true}',
            b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
    ],
)
def test_invalid_identify_is_refused(driven, document, answer):
    assert refusal(driven.client(), encode_identify(document)) == answer


def test_first_identify_decides_sampling_and_timeout(driven):
    """As in nsqd, whose message pump uses one IDENTIFY only; TOUCH uses the last."""
    client = driven.client(msg_timeout=2000)
    client.identify(msg_timeout=5000, sample_rate=1)
    assert client.exchange(COMMANDS[b"SUB"]) == [b"OK"]
    client.feed(encode_ready(50))
    driven.publish(*[b"%d" % number for number in range(50)])
    messages = client.messages()
    assert len(messages) == 50, "nothing is sampled"
    client.feed(encode_touch(messages[7].id))
    driven.advance(1.999)
    assert client.answers() == []
    driven.advance(0.001)
    assert len(client.messages()) == 49
    client.feed(encode_ready(0))
    driven.advance(2.999)
    assert messages[7].id in client.subscription.in_flight
    driven.advance(0.001)
    assert messages[7].id not in client.subscription.in_flight


# Publishing.


def test_every_publish_command_publishes(driven):
    client, consumer = driven.client(), driven.consumer(10)
    assert client.exchange(PUB, COMMANDS[b"MPUB"], COMMANDS[b"DPUB"]) == [b"OK"] * 3
    assert consumer.bodies() == [b"m", b"1", b"2"]
    driven.advance(0.001)
    assert consumer.bodies() == [b"m"]
    assert client.session.pub_counts == {b"t": 4}


def test_batch_is_published_whole_or_not_at_all(driven):
    client = driven.client()
    batch = encode_multi_publish(b"new", [b"1", b"2", b"x"])
    assert refusal(client, batch[:-5] + b"\0\0\0\0x") == b"E_BAD_MESSAGE MPUB invalid message(2) body size 0"
    assert driven.broker.topics[b"new"].message_count == 0, "the topic is made all the same"


def test_mpub_creates_its_topic_before_its_body_is_received(driven):
    driven.client().feed(b"MPUB early\n")
    assert b"early" in driven.broker.topics
    driven.client().feed(b"PUB late\n")
    assert b"late" not in driven.broker.topics


def test_batch_in_parts_waits_for_a_new_grant_before_its_body():
    def authorize() -> None:
        document = b'{"ttl":10,"authorizations":[{"topic":".*","channels":[".*"],"permissions":["publish"]}]}'
        session.authorize(decode_auth_state(document, driven.now_ns))
        session.process_input(driven.now_ns)

    driven = DrivenBroker(auth_http_addresses=["127.0.0.1:1"])
    client = driven.client()
    session = client.session
    client.feed(b"AUTH\n\0\0\0\1s")
    authorize()
    client.answers()
    driven.advance(11)
    batch = encode_multi_publish(b"t", [b"one", b"two"])
    client.feed(batch[:20])
    assert session.outbox_full
    assert b"t" not in driven.broker.topics
    authorize()
    assert not session.outbox_full
    assert driven.broker.topics[b"t"].message_count == 0
    assert client.exchange(batch[20:]) == [b"OK"]
    assert driven.broker.topics[b"t"].message_count == 2


def test_message_that_is_too_large_is_refused():
    client = DrivenBroker(max_msg_size=10).client()
    assert refusal(client, encode_publish(b"t", b"x" * 11)) == b"E_BAD_MESSAGE PUB message too big 11 > 10"


@pytest.mark.parametrize("delay_ms", [1, 1000, 3_600_000])
def test_deferred_message_is_delivered_exactly_after_its_delay(driven, delay_ms):
    consumer = driven.consumer(1)
    driven.client().feed(encode_deferred_publish(b"t", b"m", delay_ms))
    assert messages_after(delay_ms * NS_PER_MS - 1, driven, consumer) == []
    (message,) = messages_after(1, driven, consumer)
    assert message.attempts == 1


def test_deferred_message_without_a_delay_is_delivered_at_once(driven):
    consumer = driven.consumer()
    assert driven.client().exchange(b"DPUB t \n\0\0\0\1m") == [b"OK"], "an empty word is 0"
    assert consumer.bodies() == [b"m"]


# RDY.


def test_rdy_limits_messages_in_flight(driven):
    consumer = driven.consumer(2)
    driven.publish(b"1", b"2", b"3", b"4")
    first, second = consumer.messages()
    driven.publish(b"5")
    assert consumer.answers() == []
    assert consumer.exchange(encode_finish(second.id))[0].body == b"3"
    assert consumer.exchange(encode_requeue(first.id, 0))[0].body == b"4"
    assert consumer.exchange(encode_ready(4), encode_ready(3))[0].body == b"5"
    assert len(consumer.subscription.in_flight) == 3


def test_lower_rdy_keeps_messages_in_flight(driven):
    consumer = driven.consumer(3)
    driven.publish(b"1", b"2", b"3", b"4")
    messages = consumer.messages()
    assert consumer.exchange(encode_ready(1), *(encode_finish(message.id) for message in messages[:2])) == []
    assert [message.body for message in consumer.exchange(encode_finish(messages[2].id))] == [b"4"]


def test_rdy_without_a_number_is_1_and_with_an_empty_one_0(driven):
    consumer = driven.consumer(5)
    consumer.feed(b"RDY\n")
    assert consumer.subscription.rdy_count == 1
    consumer.feed(b"RDY \n")
    assert consumer.subscription.rdy_count == 0
    consumer.feed(b"RDY 2500\n")
    assert (consumer.subscription.rdy_count, consumer.is_alive) == (2500, True)


def test_one_delivery_follows_one_buffer(driven):
    consumer = driven.consumer(0)
    driven.publish(*[b"m"] * 5)
    consumer.feed(encode_ready(5), encode_ready(2))
    assert len(consumer.messages()) == 2


# FIN, REQ, TOUCH.


def test_only_the_owner_can_answer_a_message(driven):
    owner, other = driven.consumer(1), driven.consumer(0)
    driven.publish(b"m")
    message_id = owner.message().id
    for verb, command in (
        (b"FIN", encode_finish(message_id)),
        (b"REQ", encode_requeue(message_id, 0)),
        (b"TOUCH", encode_touch(message_id)),
    ):
        why = b"failed client does not own message"
        assert other.exchange(command) == [b"E_%b_FAILED %b %b %b" % (verb, verb, message_id, why)]
    assert owner.exchange(encode_touch(message_id), encode_finish(message_id)) == []
    assert (owner.subscription.finish_count, other.subscription.finish_count) == (1, 0)
    assert owner.exchange(encode_finish(message_id)) == [b"E_FIN_FAILED FIN %b failed ID not in flight" % message_id]


def test_any_sixteen_bytes_are_an_id(driven):
    consumer = driven.consumer()
    odd = bytes(range(0xF0, 0x100))
    assert consumer.exchange(b"FIN %b\n" % odd) == [b"E_FIN_FAILED FIN %b failed ID not in flight" % odd]


def test_run_of_finishes_reports_the_failed_ones_and_finishes_the_others(driven):
    consumer = driven.consumer(3)
    driven.publish(b"1", b"2", b"3")
    ids = [message.id for message in consumer.messages()]
    run = [ids[0], NOBODYS_ID, ids[1], ids[0], ids[2]]
    answered = consumer.exchange(*map(encode_finish, run))
    assert answered == [
        b"E_FIN_FAILED FIN %b failed ID not in flight" % message_id for message_id in (NOBODYS_ID, ids[0])
    ]
    assert (consumer.subscription.finish_count, len(consumer.subscription.in_flight)) == (3, 0)


def test_requeued_message_is_delivered_with_one_attempt_more(driven):
    consumer = driven.consumer()
    driven.publish(b"m")
    first = consumer.message()
    (second,) = consumer.exchange(encode_requeue(first.id, 0))
    assert (second.id, second.attempts, second.body) == (first.id, 2, b"m")
    assert second.timestamp_ns == first.timestamp_ns == START_NS
    assert consumer.subscription.requeue_count == 1


@pytest.mark.parametrize(
    ("word", "delay"),
    [
        (b"1500", 1.5),
        (b"9999999999", 3600),
        (b"18446744073709551615", 0),
        (b"9223372036854775807", 0),
        (b"18446744073711", 0.001448384),
        (b"", 0),
    ],
    ids=["in range", "clamped", "negative", "overflow", "overflow to something small", "empty"],
)
def test_requeue_delay_is_exact_and_clamped(driven, word, delay):
    consumer = driven.consumer(1)
    driven.publish(b"m")
    consumer.feed(b"REQ %b %b\n" % (consumer.message().id, word))
    if delay:
        assert messages_after(round(delay * NS_PER_S) - 1, driven, consumer) == []
    (message,) = messages_after(1, driven, consumer)
    assert message.attempts == 2


def test_touch_extends_the_timeout_up_to_max_msg_timeout():
    driven = DrivenBroker(max_msg_timeout_ns=5 * NS_PER_S)
    consumer = driven.consumer(1, msg_timeout=2000)
    driven.publish(b"m")
    message_id = consumer.message().id
    for _ in range(4):
        driven.advance(1)
        assert consumer.exchange(encode_touch(message_id)) == []
    driven.advance(0.999_999_999)
    assert consumer.answers() == []
    driven.advance(0.000_000_001)
    assert consumer.message().attempts == 2


def test_touch_can_shorten_the_timeout():
    driven = DrivenBroker(msg_timeout_ns=20 * NS_PER_S, max_msg_timeout_ns=5 * NS_PER_S)
    consumer = driven.consumer()
    driven.publish(b"m")
    consumer.feed(encode_touch(consumer.message().id))
    driven.advance(4.999)
    assert consumer.answers() == []
    driven.advance(0.001)
    assert consumer.message().attempts == 2


# CLS.


def test_held_messages_can_be_answered_after_cls_and_no_others_come(driven):
    consumer = driven.consumer(3)
    driven.publish(b"1", b"2", b"3", b"4")
    first, second, third = consumer.messages()
    assert consumer.exchange(CLS) == [b"CLOSE_WAIT"]
    assert consumer.exchange(encode_touch(third.id), encode_finish(first.id), encode_requeue(second.id, 0)) == []
    assert consumer.exchange(b"RDY nonsense\n", encode_ready(5)) == [], "ignored and not parsed"
    assert consumer.exchange(PUB) == [b"OK"]
    driven.advance(60)
    assert HEARTBEAT in consumer.answers()
    assert consumer.subscription.rdy_count == 0


# Message timeouts.


def test_message_times_out_exactly(driven):
    consumer = driven.consumer(1, msg_timeout=2000)
    driven.publish(b"m")
    first = consumer.message()
    driven.advance(1.999_999_999)
    assert consumer.answers() == []
    driven.advance(0.000_000_001)
    second = consumer.message()
    assert (second.id, second.attempts) == (first.id, 2)
    assert driven.topic().channels[b"c"].timeout_count == 1


def test_each_session_has_its_own_message_timeout(driven):
    slow, quick = driven.consumer(1, msg_timeout=10_000), driven.consumer(1, msg_timeout=1000)
    driven.publish(b"1", b"2")
    slow_message, quick_message = slow.message(), quick.message()
    slow.feed(encode_ready(0))
    driven.advance(1)
    assert quick.message().id == quick_message.id
    quick.feed(encode_ready(0))
    driven.advance(8.999)
    assert slow_message.id in slow.subscription.in_flight
    driven.advance(0.001)
    assert slow_message.id not in slow.subscription.in_flight


def test_message_timeout_without_identify_is_that_of_the_broker():
    driven = DrivenBroker(msg_timeout_ns=NS_PER_S // 2)
    consumer = driven.consumer(1)
    driven.publish(b"m")
    assert consumer.message().attempts == 1
    driven.advance(0.5)
    assert consumer.message().attempts == 2


# Sampling.


@pytest.mark.parametrize(("rate", "least", "most"), [(1, 1, 45), (50, 430, 590), (99, 1000, 1000)])
def test_sampling_consumer_gets_its_share_and_the_rest_is_dropped(rate, least, most):
    driven = DrivenBroker(seed=1)
    consumer = driven.consumer(2500, sample_rate=rate)
    for number in range(1000):
        driven.publish(b"%d" % number)
    count = len(consumer.messages())
    assert least <= count <= most
    channel = driven.topic().channels[b"c"]
    assert (len(channel.queue), channel.in_flight_count) == (0, count)


def test_the_same_seed_samples_the_same_messages():
    bodies = []
    for _ in range(2):
        driven = DrivenBroker(seed=5)
        consumer = driven.consumer(100, sample_rate=30)
        driven.publish(*[b"%d" % number for number in range(100)])
        bodies.append(consumer.bodies())
    assert bodies[0] == bodies[1]
    assert 0 < len(bodies[0]) < 100


def test_sampled_out_messages_do_not_count_for_rdy(driven):
    consumer = driven.consumer(1, sample_rate=1)
    driven.publish(*[b"m"] * 500)
    got = len(consumer.messages())
    assert got == 1, "it goes on until there is one"
    assert len(driven.topic().channels[b"c"].queue) < 499


# Heartbeats.


def test_client_that_answers_gets_a_heartbeat_at_each_interval(driven):
    client = driven.client(heartbeat_interval=2000)
    for _ in range(5):
        driven.advance(1.999)
        assert client.answers() == []
        driven.advance(0.001)
        assert client.answers() == [HEARTBEAT]
        client.feed(b"NOP\n")


def test_silent_client_is_disconnected_after_two_intervals_without_an_answer(driven):
    client = driven.client(heartbeat_interval=2000)
    driven.advance(3.999)
    assert (client.answers(), client.is_alive) == ([HEARTBEAT], True)
    driven.advance(0.001)
    assert (client.answers(), client.is_alive) == ([], False)
    assert client.end_reason == "no command for two heartbeat intervals of 2000 ms"


def test_only_a_complete_command_postpones_the_timeout(driven):
    busy, dribbling = (driven.client(heartbeat_interval=1000) for _ in range(2))
    for _ in range(4):
        driven.advance(0.999)
        busy.feed(PUB)
        dribbling.feed(b"N")
    assert (busy.is_alive, dribbling.is_alive) == (True, False)


def test_heartbeat_interval_before_identify_is_30_seconds(driven):
    client = driven.client()
    driven.advance(30)
    assert client.answers() == [HEARTBEAT]
    driven.advance(30)
    assert not client.is_alive


def test_interval_can_be_longer_than_the_one_before_identify(driven):
    client = driven.client(heartbeat_interval=60_000)
    driven.advance(59.999)
    assert client.answers() == []
    driven.advance(0.001)
    assert client.answers() == [HEARTBEAT]


def test_heartbeats_can_be_disabled_but_not_for_consumers(driven):
    client = driven.client(heartbeat_interval=-1)
    driven.advance(10_000)
    assert (client.answers(), client.is_alive) == ([], True)
    assert refusal(client, b"SUB\n") == b"E_INVALID cannot SUB with heartbeats disabled"


def test_first_identify_sets_heartbeats_and_the_last_the_timeout(driven):
    client = driven.client(heartbeat_interval=3000)
    client.identify(heartbeat_interval=60_000)
    driven.advance(9)
    assert client.answers() == [HEARTBEAT] * 3
    driven.advance(111)
    assert not client.is_alive


def test_client_without_heartbeats_can_have_a_timeout(driven):
    client = driven.client(heartbeat_interval=-1)
    client.identify(heartbeat_interval=1000)
    driven.advance(1.999)
    assert (client.answers(), client.is_alive) == ([], True)
    driven.advance(0.001)
    assert not client.is_alive


def test_client_without_a_timeout_still_gets_heartbeats(driven):
    client = driven.client(heartbeat_interval=1000)
    client.identify(heartbeat_interval=-1)
    driven.advance(5)
    assert (client.answers(), client.is_alive) == ([HEARTBEAT] * 5, True)


def test_clock_jump_sends_one_heartbeat_and_the_next_an_interval_later(driven):
    client = driven.client(heartbeat_interval=10_000)
    driven.jump(19.5)
    assert client.answers() == [HEARTBEAT]
    client.feed(b"NOP\n")
    driven.advance(9.999)
    assert client.answers() == []
    driven.advance(0.001)
    assert client.answers() == [HEARTBEAT]


def test_client_has_a_whole_interval_to_read_after_a_clock_jump(driven):
    client = driven.client(heartbeat_interval=10_000)
    client.reads = False
    driven.jump(19.9)
    client.feed(b"NOP\n")
    driven.advance(9.9)
    assert client.is_alive
    driven.advance(0.1)
    assert not client.is_alive


def test_missed_heartbeats_are_not_sent_later(driven):
    client = driven.client(heartbeat_interval=3000)
    client.identify(heartbeat_interval=60_000)
    driven.jump(10)
    assert client.answers() == [HEARTBEAT]
    driven.advance(2.999)
    assert client.answers() == []
    driven.advance(0.001)
    assert client.answers() == [HEARTBEAT]


def test_client_that_waits_for_an_auth_server_is_not_silent():
    driven = DrivenBroker(auth_http_addresses=["127.0.0.1:1"])
    client = driven.client()
    client.exchange(encode_identify(b'{"heartbeat_interval": 1000}'))
    client.feed(encode_auth(b"secret"))
    driven.advance(10)
    assert not client.session.ended
    client.session.authorize(RequestFailed("down"))
    client.session.process_input(driven.now_ns)
    assert client.end_reason == "E_AUTH_FAILED AUTH failed - down"


def test_clock_that_jumps_by_two_intervals_ends_a_silent_client(driven):
    client = driven.client(heartbeat_interval=10_000)
    driven.jump(1_000_000)
    assert (client.answers(), client.is_alive) == ([], False)


# A slow reader.


def test_full_outbox_stops_delivery_until_it_is_taken(driven):
    size = OUTBOX_SIZE_MAX // 4
    consumer, other = driven.consumer(2500), driven.consumer(0, channel=b"other")
    driven.publish(*[b"x" * (size - FRAME_HEADER_LENGTH)] * 10)
    session = consumer.session
    assert session.outbox_full
    in_flight = consumer.subscription.in_flight
    assert (consumer.subscription.capacity, len(in_flight)) == (0, 4)
    assert len(driven.topic().channels[b"c"].queue) == 6
    driven.publish(b"more")
    assert len(in_flight) == 4
    assert len(session.data_to_send()) == OUTBOX_SIZE_MAX
    assert driven.broker.next_deadline() == 0, "the channel waits for delivery"
    driven.broker.handle_deadline(driven.now_ns)
    assert len(in_flight) == 8, "the next messages are delivered after the first were taken"
    assert len(session.data_to_send()) == OUTBOX_SIZE_MAX
    driven.settle()
    assert len(consumer.messages()) == 3
    assert len(in_flight) == 11
    assert other.answers() == []


def test_consumer_that_does_not_read_leaves_messages_to_others(driven):
    slow, quick = driven.consumer(2500), driven.consumer(2500)
    for _ in range(20):
        driven.publish(b"x" * (OUTBOX_SIZE_MAX // 4))
        quick.feed(*(encode_finish(message.id) for message in quick.messages()))
    assert len(slow.subscription.in_flight) == 4
    assert quick.subscription.finish_count == 16


def test_answers_fill_the_outbox(driven):
    consumer = driven.consumer(10)
    consumer.feed(NOBODYS_FINISH * (OUTBOX_SIZE_MAX // len(NOBODYS_FINISH) + 1))
    consumer.work()
    assert consumer.session.outbox_full
    driven.publish(b"m")
    assert len(consumer.subscription.in_flight) == 0
    answered = consumer.answers()
    assert {answer for answer in answered if isinstance(answer, bytes)} == {*ANSWERS[b"FIN"]}
    assert [answer.body for answer in answered if not isinstance(answer, bytes)] == [b"m"]


def test_answers_fill_the_outbox_of_a_producer(driven):
    client = driven.client()
    client.feed(PUB * (OUTBOX_SIZE_MAX // len(OK_FRAME) + 1))
    client.work()
    assert client.session.outbox_full
    assert client.session.data_to_send() == OK_FRAME * (OUTBOX_SIZE_MAX // len(OK_FRAME) + 1)
    assert not client.session.outbox_full


# A consumer that sends much at once.


def holding(driven: DrivenBroker, count: int) -> tuple[DrivenClient, bytes]:
    """Return a consumer that has ``count`` messages in flight, and a FIN for each of them."""
    consumer = driven.consumer(count)
    driven.publish(*[b"m"] * count)
    return consumer, b"".join(encode_finish(message.id) for message in consumer.messages())


def test_many_answers_are_processed_in_turns(driven):
    consumer, finishes = holding(driven, 3 * SHORT_TURN_WORDS_MAX + 5)
    consumer.feed(finishes, encode_ready(1))
    session = consumer.session
    in_flight = [len(consumer.subscription.in_flight)]
    while session.has_input:
        session.process_input(driven.now_ns)
        in_flight.append(len(consumer.subscription.in_flight))
    assert in_flight == [2 * SHORT_TURN_WORDS_MAX + 5, SHORT_TURN_WORDS_MAX + 5, 5, 0]
    assert consumer.subscription.rdy_count == 1


def test_input_between_two_turns_is_processed_after_earlier_input(driven):
    consumer, finishes = holding(driven, SHORT_TURN_WORDS_MAX + 5)
    consumer.feed(finishes, encode_ready(1))
    consumer.feed(encode_ready(2))
    assert (len(consumer.subscription.in_flight), consumer.subscription.rdy_count) == (
        5,
        SHORT_TURN_WORDS_MAX + 5,
    )
    assert consumer.answers() == []
    assert (len(consumer.subscription.in_flight), consumer.subscription.rdy_count) == (0, 2)


def test_many_answers_are_processed_at_once_without_publishers(driven):
    consumer, finishes = holding(driven, 3 * SHORT_TURN_WORDS_MAX)
    driven.advance(SHORT_TURNS_NS / NS_PER_S)
    consumer.feed(finishes)
    assert len(consumer.subscription.in_flight) == 0
    assert not consumer.session.has_input


def test_each_word_counts_for_a_turn(driven):
    consumer = driven.consumer(1)
    driven.publish(b"m")
    (message,) = consumer.messages()
    consumer.feed(encode_touch(message.id) * (SHORT_TURN_WORDS_MAX - 1), encode_requeue(NOBODYS_ID, 0), encode_ready(5))
    assert consumer.subscription.rdy_count == 1
    assert consumer.answers() == ANSWERS[b"REQ"]
    assert consumer.subscription.rdy_count == 5


def test_many_publishes_are_processed_at_once(driven):
    client = driven.client()
    client.feed(PUB * 2 * SHORT_TURN_WORDS_MAX, COMMANDS[b"DPUB"] * 2 * SHORT_TURN_WORDS_MAX)
    assert client.session.data_to_send() == OK_FRAME * 4 * SHORT_TURN_WORDS_MAX
    assert 4 * SHORT_TURN_WORDS_MAX < TURN_WORDS_MAX


@pytest.mark.parametrize("count", [1, 5 * SHORT_TURN_WORDS_MAX])
def test_answers_of_a_consumer_that_has_left_are_processed(driven, count):
    consumer, finishes = holding(driven, count)
    consumer.feed(finishes)
    consumer.session.receive_eof(driven.now_ns)
    consumer.work()
    assert len(consumer.subscription.in_flight) == 0
    assert not consumer.is_alive


def test_consumer_that_has_left_gets_nothing_while_its_input_is_processed(driven):
    consumer, finishes = holding(driven, 2 * SHORT_TURN_WORDS_MAX)
    consumer.feed(finishes)
    consumer.session.receive_eof(driven.now_ns)
    driven.publish(b"m")
    assert not consumer.session.has_output
    consumer.session.process_input(driven.now_ns)
    assert consumer.session.ended
    assert len(consumer.subscription.in_flight) == 0


def test_input_for_the_next_turn_is_dropped_with_its_session(driven):
    consumer, finishes = holding(driven, 2 * SHORT_TURN_WORDS_MAX)
    consumer.feed(finishes)
    consumer.session.end("a test")
    assert not consumer.session.has_input
    consumer.session.process_input(driven.now_ns)
    consumer.session.receive_eof(driven.now_ns)
    assert len(consumer.subscription.in_flight) == SHORT_TURN_WORDS_MAX


def test_refusal_in_a_later_turn_ends_the_session(driven):
    consumer, finishes = holding(driven, 2 * SHORT_TURN_WORDS_MAX)
    consumer.feed(finishes, b"HELLO\n", finishes)
    assert consumer.answers() == [b"E_INVALID invalid command HELLO"]
    assert len(consumer.subscription.in_flight) == 0
    assert not consumer.is_alive


# Deflate.


class Deflated:
    """A client's side of a deflated connection."""

    def __init__(self, client: DrivenClient, driven: DrivenBroker) -> None:
        self._session, self._driven = client.session, driven
        self._deflater = zlib.compressobj(wbits=-15)
        self._inflater = zlib.decompressobj(wbits=-15)
        self._decoder = FrameDecoder()

    def deflate(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def inflate(self, data: bytes) -> list[object]:
        return [
            frame.payload if isinstance(frame, Response) else frame
            for frame in self._decoder.feed(self._inflater.decompress(data))
        ]

    def exchange(self, *commands: bytes) -> list[object]:
        self._session.receive_data(self.deflate(b"".join(commands)), self._driven.now_ns)
        return self.inflate(self._session.data_to_send())


IDENTIFY_DEFLATE = encode_identify(b'{"feature_negotiation": true, "deflate": true}')


def split_answer(data: bytes) -> tuple[dict[str, object], bytes]:
    """Split the plain answer to IDENTIFY from the bytes behind it."""
    end = 4 + int.from_bytes(data[:4], "big")
    return json.loads(data[8:end]), data[end:]


def upgraded(driven: DrivenBroker, behind: bytes = b"", cut: int | None = None) -> tuple[Deflated, bytes]:
    """Return a client with deflate, and the deflated answers of the broker."""
    client = driven.client()
    deflated = Deflated(client, driven)
    data = IDENTIFY_DEFLATE + (deflated.deflate(behind) if behind else b"")
    for piece in (data,) if cut is None else (data[:cut], data[cut:]):
        client.feed(piece)
    granted, rest = split_answer(client.session.data_to_send())
    assert (granted["deflate"], granted["deflate_level"]) == (True, 6)
    return deflated, rest


def test_deflate_begins_after_the_answer_to_identify(driven):
    deflated, rest = upgraded(driven)
    assert deflated.inflate(rest) == [b"OK"]
    assert deflated.exchange(PUB, COMMANDS[b"SUB"], encode_ready(1))[:2] == [b"OK", b"OK"]
    driven.publish(b"m")
    assert deflated.exchange(PUB)[-1] == b"OK"


def test_bytes_directly_after_identify_are_deflated(driven):
    deflated, rest = upgraded(driven, PUB + COMMANDS[b"SUB"] + encode_ready(1) + PUB)
    *answered, message = deflated.inflate(rest)
    assert answered == [b"OK"] * 4
    assert isinstance(message, MessageFrame)
    assert message.body == b"m"
    assert deflated.exchange(encode_finish(message.id), PUB)[0] == b"OK"


def test_answers_before_the_upgrade_are_plain(driven):
    client = driven.client()
    client.feed(PUB, PUB, IDENTIFY_DEFLATE)
    data = client.session.data_to_send()
    assert data.startswith(OK_FRAME * 2)
    _, rest = split_answer(data[2 * len(OK_FRAME) :])
    assert Deflated(client, driven).inflate(rest) == [b"OK"]


def test_upgrade_does_not_depend_on_the_pieces(driven):
    behind = PUB + COMMANDS[b"MPUB"] + b"NOP\n"
    length = len(IDENTIFY_DEFLATE) + len(Deflated(driven.client(), driven).deflate(behind))
    for cut in range(length + 1):
        deflated, rest = upgraded(driven, behind, cut)
        assert deflated.inflate(rest) == [b"OK"] * 3
        assert deflated.exchange(PUB) == [b"OK"]


def test_command_can_span_deflate_blocks(driven):
    deflated, rest = upgraded(driven, PUB[:4])
    assert deflated.inflate(rest) == [b"OK"]
    assert deflated.exchange(PUB[4:], PUB[:7]) == [b"OK"]
    assert deflated.exchange(PUB[7:]) == [b"OK"]


def test_large_buffer_is_decoded_in_pieces(driven):
    deflated, rest = upgraded(driven)
    assert deflated.inflate(rest) == [b"OK"]
    assert deflated.exchange(*[encode_publish(b"t", b"x" * 100_000)] * 8) == [b"OK"] * 8
    assert driven.topic().message_bytes == 800_000


def test_refusal_is_deflated(driven):
    deflated, rest = upgraded(driven, b"nonsense\n")
    ok, error = deflated.inflate(rest)
    assert (ok, str(error)) == (b"OK", "E_INVALID invalid command nonsense")


def test_bytes_that_are_not_deflate_end_the_session_without_an_answer(driven):
    client = driven.client()
    client.feed(IDENTIFY_DEFLATE, b"\xff" * 20)
    _, rest = split_answer(client.session.data_to_send())
    assert Deflated(client, driven).inflate(rest) == [b"OK"]
    assert (client.session.ended, client.end_reason[:28]) == (True, "the stream is not deflate: E")


def test_second_upgrade_is_answered_in_the_first_and_replaces_it(driven):
    first, rest = upgraded(driven)
    first.inflate(rest)
    client = driven.client()
    deflated = Deflated(client, driven)
    client.feed(IDENTIFY_DEFLATE)
    _, rest = split_answer(client.session.data_to_send())
    assert deflated.inflate(rest) == [b"OK"]
    client.feed(deflated.deflate(IDENTIFY_DEFLATE))
    data = client.session.data_to_send()
    again = Deflated(client, driven)
    # The old stream ends somewhere in these bytes, where a flush has left it at a whole byte: 00 00 ff ff.
    end = data.index(b"\0\0\xff\xff") + 4
    (granted,) = deflated.inflate(data[:end])
    assert isinstance(granted, bytes)
    assert json.loads(granted)["deflate"] is True
    assert again.inflate(data[end:]) == [b"OK"]
    assert again.exchange(PUB) == [b"OK"]


# The end.


def test_session_has_output_while_it_has_bytes_or_has_ended(driven):
    client = driven.client()
    assert not client.session.has_output
    client.feed(PUB)
    assert client.session.has_output
    client.answers()
    assert not client.session.has_output
    client.disconnect()
    assert client.session.has_output


def test_client_can_disconnect(driven):
    client = driven.client()
    client.disconnect()
    assert (client.is_alive, client.end_reason, client.answers()) == (False, None, [])
    client.disconnect()
    assert driven.broker.sessions == {}


def test_truncated_body_is_answered_with_an_error(driven):
    client = driven.client()
    client.feed(PUB[:-1])
    client.disconnect()
    assert client.answers() == [b"E_BAD_MESSAGE PUB failed to read message body"]
    assert client.end_reason == "E_BAD_MESSAGE PUB failed to read message body"


def test_refusal_remains_the_reason_after_a_disconnect(driven):
    client = driven.client()
    client.feed(b"nonsense\n")
    client.disconnect()
    assert client.end_reason == "E_INVALID invalid command nonsense"


def test_commands_before_a_refusal_have_their_effect(driven):
    consumer, client = driven.consumer(5), driven.client()
    assert client.exchange(PUB, b"nonsense\n", PUB) == [b"OK", b"E_INVALID invalid command nonsense"]
    assert consumer.bodies() == [b"m"]


def test_ended_session_gets_nothing(driven):
    consumer, other = driven.consumer(5), driven.consumer(5)
    consumer.session.end("for a reason")
    driven.publish(b"1", b"2")
    assert (consumer.answers(), other.bodies()) == ([], [b"1", b"2"])
    consumer.session.end("for another")
    assert consumer.end_reason == "for a reason"
    driven.advance(29)
    other.feed(b"NOP\n")
    driven.advance(1)
    assert consumer.answers() == [], "not even a heartbeat"


# Too many consumers.


def test_max_channel_consumers_limits_consumers():
    driven = DrivenBroker(max_channel_consumers=2)
    first, _ = driven.consumer(), driven.consumer()
    assert refusal(driven.client(), COMMANDS[b"SUB"]) == (
        b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2"
    )
    assert driven.consumer(channel=b"other").is_alive
    first.disconnect()
    assert driven.consumer().is_alive


# Garbage.


@given(st.lists(st.one_of(st.binary(max_size=40), strategies.wild_commands()), max_size=6))
def test_garbage_ends_one_session_and_no_other(pieces):
    driven = DrivenBroker()
    consumer, client = driven.consumer(5, topic=b"mine"), driven.client()
    garbage = driven.client()
    for piece in pieces:
        garbage.feed(piece)
        errors = [
            answered for answered in garbage.answers() if isinstance(answered, bytes) and answered.startswith(b"E_")
        ]
        fatal = [answered for answered in errors if answered.split()[0][2:-7] not in (b"FIN", b"REQ", b"TOUCH")]
        assert len(fatal) <= 1
        assert not fatal or not garbage.is_alive
    client.publish(b"m", topic=b"mine")
    message = consumer.message()
    assert consumer.exchange(encode_finish(message.id)) == []
    driven.advance(30)
    assert client.answers() == consumer.answers() == [HEARTBEAT]


@given(st.data(), st.sampled_from([1, 2, 3, SHORT_TURN_WORDS_MAX]))
def test_answers_do_not_depend_on_chunks_and_turns(data, turn_words):
    verbs = [b"IDENTIFY", b"PUB", b"MPUB", b"SUB", b"DPUB", b"FIN", b"FIN", b"NOP", b"TOUCH", b"REQ", b"CLS"]
    stream = b"".join([COMMANDS[verb] for verb in verbs]) + b"bad\n" + PUB
    client = DrivenBroker().client()
    answered = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nsqkit.broker.core.session.turns.SHORT_TURN_WORDS_MAX", turn_words)
        patch.setattr("nsqkit.broker.core.session.turns.TURN_WORDS_MAX", turn_words)
        for piece in data.draw(strategies.chunkings(stream)):
            client.feed(piece)
            if data.draw(st.booleans()):
                answered += client.answers()
        answered += client.answers()
    assert answered == [answer for verb in verbs for answer in ANSWERS[verb]] + [b"E_INVALID invalid command bad"]


def test_magic_can_be_received_byte_by_byte(driven):
    session = driven.broker.open_session("10.0.0.1:1", START_NS)
    for byte in strategies.single_bytes(MAGIC_V2 + PUB):
        session.receive_data(byte, START_NS)
    assert session.data_to_send() == OK_FRAME
