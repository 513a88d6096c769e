"""The broker's end of a connection with snappy, deflate or TLS.

The lowest bit of the mode selects deflate, the next one an encoder: with it the contents are plain commands. In one
mode of eight TLS is below.
"""

from __future__ import annotations

from random import Random
from typing import Final

from nsqkit.broker.core.broker import Broker
from nsqkit.producer.session import ProducerSession
from nsqkit.transport.tls import TLS
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.identify import IdentifyRequest
from tests.certificates import HOST, client_context, server_context
from tests.fuzz import broker_session
from tests.fuzz.broker_session import NOW_NS, OPTIONS, receive
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack, unpack
from tests.kept import kept_size

_COMMANDS = [content.content for seed in broker_session.SEEDS for content in unpack(seed)[2]]
SEEDS: Final = [
    *(pack(*_COMMANDS, mode=mode) for mode in (2, 3, 30, 31)),
    pack(Snappy().encode(b"".join(_COMMANDS)), b"\xff\x06\x00\x00sNaPpY\xfe\x01\x00\x00\x00"),
    pack(Deflate(6).encode(b"".join(_COMMANDS)), Deflate(6).encode(bytes(300_000)), mode=1),
    pack(Snappy().encode(bytes(300_000)), action=3),
    pack(TLS(client_context(), server_hostname=HOST).encode(b""), mode=28),
]
WORDS: Final = [*broker_session.WORDS, b"\xff\x06\x00\x00sNaPpY", b"\x16\x03\x01", b"\x17\x03\x03"]
CALLS_PER_UNIT: Final = 100
KEPT_MAX: Final = broker_session.KEPT_MAX + 76_494
_CONTEXTS: Final = (server_context(), client_context())


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    deflate, encodes, has_tls = bool(mode & 1), bool(mode & 2), mode >> 2 & 7 == 7
    broker = Broker(OPTIONS, Random(0))
    broker.offer_tls(lambda: TLS(_CONTEXTS[0]))
    session = broker.open_session("192.0.2.1:9", NOW_NS)
    identity = IdentifyRequest(feature_negotiation=True, deflate=deflate, snappy=not deflate, tls_v1=has_tls)
    client = ProducerSession(identity, read_timeout_ns=1 << 60, max_msg_size=1000, now_ns=NOW_NS)
    client.secure(make_tls=lambda: TLS(_CONTEXTS[1], server_hostname=HOST))
    session.receive_data(client.data_to_send(), NOW_NS)
    answer = session.data_to_send()
    while encodes and answer:
        client.receive_data(answer, NOW_NS)
        session.receive_data(client.data_to_send(), NOW_NS)
        answer = session.data_to_send()
    output = b"" if encodes else answer[answer.index(b"}") + 1 :]
    for each in rounds:
        client.send(each.content)
        for piece in cut(client.data_to_send() if encodes else each.content):
            output += receive(session, piece, NOW_NS)
        broker.settle(NOW_NS)
        output += session.data_to_send()
    refused = session.ended
    assert refused or kept_size(session._buffer) <= KEPT_MAX
    session.receive_eof(NOW_NS)
    output += session.data_to_send()
    if not encodes:
        output = b"" if has_tls else b"".join((Deflate(6) if deflate else Snappy()).decode(output))
    else:
        output = b"".join(client._layers.decode(output))
    return Outcome({"output": output}, broker_session.state_of(broker), refused=refused)
