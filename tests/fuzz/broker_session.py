"""The broker's end of a client's connection, after the magic. The action of a round is the time before it."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.command_rules import TRANSITIONS
from nsqkit.broker.core.session.session import Session
from nsqkit.wire import commands
from nsqkit.wire.identify import IdentifyRequest, encode_request
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack
from tests.kept import kept_size

NOW_NS: Final = 1_700_000_000 * 10**9
STEP_NS: Final = 500_000_000
OPTIONS: Final = BrokerOptions(max_msg_size=1000, max_body_size=3000, max_rdy_count=20, node_id=1)
# The last line and that of the last lone command, with its length; the words of both; a part of the next line.
KEPT_MAX: Final = 5 * commands.LINE_LENGTH_MAX + 100
((_PREFIX, (_SUFFIX,)),) = GuidFactory(OPTIONS.node_id).take(1, NOW_NS)
FIRST_ID: Final = _PREFIX + _SUFFIX

_IDENTIFY = commands.encode_identify(
    encode_request(IdentifyRequest(client_id="c", feature_negotiation=True, sample_rate=50, msg_timeout=1000))
)
_SUB = commands.encode_subscribe(b"t", b"c")
_PUB = commands.encode_publish(b"t", b"body")
_MPUB = commands.encode_multi_publish(b"t", [b"one", b"two", b"three"])
_DPUB = commands.encode_deferred_publish(b"t", b"later", 500)
_ANSWERS = commands.encode_requeue(FIRST_ID, 100) + commands.encode_touch(FIRST_ID)

SEEDS: Final = [
    pack(_IDENTIFY + _PUB + _MPUB + _DPUB + commands.NOP),
    pack(_PUB + _SUB + commands.encode_ready(2), commands.encode_finish(FIRST_ID), b"", action=4),
    pack(_SUB + commands.encode_ready(5) + _PUB, _ANSWERS, _MPUB + commands.CLS, b"", action=8),
    pack(commands.encode_auth(b"secret"), action=3),
    pack(_PUB, action=3),
    pack(commands.encode_finishes([FIRST_ID] * 3), _DPUB, b"", action=3),
]
WORDS: Final = [*{verb.encode() for verbs in TRANSITIONS.values() for verb in verbs}, b"#ephemeral", FIRST_ID, b"\n"]
CALLS_PER_UNIT: Final = 60


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    broker = Broker(OPTIONS, Random(0))
    session = broker.open_session("192.0.2.1:9", NOW_NS)
    session.receive_data(commands.MAGIC_V2, NOW_NS)
    now_ns, output = NOW_NS, b""
    for each in rounds:
        now_ns += each.action * STEP_NS
        broker.handle_deadline(now_ns)
        for piece in cut(each.content):
            output += receive(session, piece, now_ns)
        broker.settle(now_ns)
        output += session.data_to_send()
    assert session.ended or kept_size(session._buffer) <= KEPT_MAX
    session.receive_eof(now_ns)
    output += session.data_to_send()
    return Outcome({"output": output, "events": list(session.events())}, state_of(broker))


def receive(session: Session, data: bytes, now_ns: int) -> bytes:
    """Have a session process all of the data; return its output meanwhile."""
    session.receive_data(data, now_ns)
    output = b""
    while session.has_input or session.outbox_full:
        output += session.data_to_send()
        session.process_input(now_ns)
    return output


def state_of(broker: Broker) -> Any:
    return [
        (topic.name, topic.message_count, [(each.name, len(each.queue), each.in_flight_count, len(each.deferred))])
        for topic in broker.topics.values()
        for each in topic.channels.values()
    ]
