from __future__ import annotations

import json
import socket
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.admin.documents import read
from nsqkit.admin.stats import NsqdStats
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.report.stats import collect, to_document
from nsqkit.errors import OptionError
from nsqkit.testing.servers import NsqdServer
from nsqkit.testing.state import ChannelState, ClientState, NsqdState, TopicState, of_broker, of_stats
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import (
    MAGIC_V2,
    encode_deferred_publish,
    encode_finish,
    encode_identify,
    encode_publish,
    encode_ready,
    encode_requeue,
    encode_subscribe,
)
from nsqkit.wire.frames import OK_FRAME

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session

NOW_NS = 1_700_000_000 * 10**9


@pytest.fixture
def broker() -> Broker:
    return Broker(BrokerOptions(mem_queue_size=1, msg_timeout_ns=10**9), Random(1))


def connect(broker: Broker, *commands: bytes, address: str = "10.0.0.1:4242", identity: bytes = b"") -> Session:
    session = broker.open_session(address, NOW_NS)
    session.receive_data(b"  V2" + (encode_identify(identity) if identity else b""), NOW_NS)
    send(broker, session, *commands)
    return session


def send(broker: Broker, session: Session, *commands: bytes) -> None:
    session.receive_data(b"".join(commands), NOW_NS)
    broker.settle(NOW_NS)


def first_id(session: Session) -> bytes:
    assert session.subscription is not None
    return next(iter(session.subscription.in_flight.untouched))


def stats_of(broker: Broker) -> NsqdStats:
    """Return the values of ``/stats``."""
    document = to_document(collect(broker, NOW_NS), health=broker.health, start_time_ns=NOW_NS, memory=None)
    return read(NsqdStats, json.loads(json.dumps(document)))


def test_counts_are_those_of_nsqd(broker: Broker) -> None:
    consumer = connect(
        broker,
        encode_subscribe(b"orders", b"billing"),
        encode_ready(2),
        address="10.0.0.1:1",
        identity=b'{"client_id":"c","hostname":"h","user_agent":"u"}',
    )
    producer = connect(
        broker, *[encode_publish(b"orders", b"%d" % number) for number in range(6)], address="10.0.0.2:2"
    )
    send(broker, producer, encode_deferred_publish(b"orders", b"later", 5000))
    send(broker, consumer, encode_finish(first_id(consumer)))
    send(broker, consumer, encode_requeue(first_id(consumer), 0))

    topic = of_broker(broker).topic("orders")
    client = ClientState(
        address="10.0.0.1:1",
        client_id="c",
        hostname="h",
        user_agent="u",
        topic="orders",
        channel="billing",
        ready_count=2,
        in_flight=2,
        message_count=4,
        finish_count=1,
        requeue_count=1,
    )
    channel = ChannelState(
        name="billing",
        depth=3,
        backend_depth=3,
        in_flight=2,
        deferred=1,
        message_count=7,
        requeue_count=1,
        clients=(client,),
    )
    assert topic == TopicState(name="orders", message_count=7, message_bytes=11, channels={"billing": channel})
    assert topic.channel("billing").ready_count == 2


def test_timed_out_messages_are_counted(broker: Broker) -> None:
    connect(broker, encode_publish(b"t", b"x"), encode_subscribe(b"t", b"c"), encode_ready(1))
    broker.handle_deadline(NOW_NS + 1_000_000_000)
    assert of_broker(broker).topic("t").channel("c").timeout_count == 1


def test_paused_topic_and_channel(broker: Broker) -> None:
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"c", NOW_NS).pause()
    topic.pause()
    topic.put([b"x", b"y"], NOW_NS)
    state = of_broker(broker).topic("t")
    assert (state.paused, state.depth, state.backend_depth) == (True, 2, 1)
    assert state.channel("c").paused


def test_topic_that_does_not_exist_is_a_state_with_zeros() -> None:
    state = NsqdState().topic("orders")
    assert state == TopicState(name="orders", exists=False)
    assert (state.depth, state.channel("c").depth, state.channel("c").exists) == (0, 0, False)
    assert str(state) == "topic 'orders' does not exist"
    assert str(state.channel("c")) == "channel 'c' does not exist"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65])
def test_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="topic name"):
        NsqdState().topic(name)
    with pytest.raises(OptionError, match="channel name"):
        TopicState(name="t").channel(name)


def test_table_shows_topics_channels_and_clients(broker: Broker) -> None:
    connect(broker, encode_publish(b"orders", b"x"), encode_subscribe(b"orders", b"billing"), encode_ready(5))
    connect(broker, address="10.0.0.2:2")
    broker.topics[b"orders"].pause()
    counts = "orders/billing, ready 5, in flight 1, delivered 1, finished 0, requeued 0"
    assert str(of_broker(broker)).split("\n") == [
        "topic   channel  depth  in_flight  deferred  messages  requeues  timeouts  clients  paused",
        "orders               0                              1                               paused",
        "orders  billing      0          1         0         1         0         0        1",
        f"client 10.0.0.1:4242 (10.0.0.1, no user agent): {counts}",
        "client 10.0.0.2:2 (10.0.0.2, no user agent): no subscription",
    ]
    assert str(of_broker(broker).topic("orders").channel("billing")).count("\n") == 1
    assert str(of_broker(broker).topic("orders")).count("\n") == 2


def test_table_of_an_empty_broker_that_is_not_healthy() -> None:
    assert str(NsqdState(health="NOK - disk")) == "NOK - disk\nno topics"


COMMANDS = st.sampled_from(
    [
        encode_publish(b"t", b"x"),
        encode_publish(b"u", b"yy"),
        encode_deferred_publish(b"t", b"later", 5000),
        encode_subscribe(b"t", b"c"),
        encode_subscribe(b"t", b"b"),
        encode_subscribe(b"u", b"c"),
        encode_ready(1),
        encode_ready(3),
    ]
)
IDENTITIES = st.sampled_from([b"", b'{"client_id":"c","hostname":"h","user_agent":"u","sample_rate":50}'])


@given(clients=st.lists(st.tuples(IDENTITIES, st.lists(COMMANDS, min_size=1, max_size=6)), max_size=4))
def test_engine_and_stats_give_equal_states(clients: list[tuple[bytes, list[bytes]]]) -> None:
    broker = Broker(BrokerOptions(mem_queue_size=1), Random(1))
    for port, (identity, commands) in enumerate(clients):
        connect(broker, *commands, address=f"10.0.0.1:{port}", identity=identity)
    for session in list(broker.sessions):  # refused ones, and those that /stats does not list
        if session.ended or not (session.subscription or session.pub_counts):
            broker.close_session(session, NOW_NS)
    state = of_broker(broker)
    expected = of_stats(stats_of(broker))
    assert state == expected
    assert str(state) == str(expected)


def test_server_shows_its_state_and_stats_agree() -> None:
    with NsqdServer() as nsqd, socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x") + encode_subscribe(b"t", b"c"))
        assert client.recv(len(OK_FRAME), socket.MSG_WAITALL) == OK_FRAME
        assert client.recv(len(OK_FRAME), socket.MSG_WAITALL) == OK_FRAME
        with urlopen(f"{nsqd.http_url}/stats?format=json", timeout=60) as answer:
            document: dict[str, Any] = json.load(answer)
        state = nsqd.state
        assert state == of_stats(read(NsqdStats, document))
        assert nsqd.topic("t").channel("c").depth == 1
        assert list(nsqd.topics) == ["t"]
        assert [client.channel for client in nsqd.connections] == ["c"]


def test_values_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        TopicState(name="t").depth = 1  # type: ignore[misc]
