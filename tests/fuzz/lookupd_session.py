"""The nsqlookupd's end of an nsqd's connection. The action of a round is the time before it, in seconds."""

from __future__ import annotations

from typing import Final

from nsqkit.lookupd.registry import Registry
from nsqkit.lookupd.session import TRANSITIONS, Session
from nsqkit.wire.lookup import (
    BODY_LENGTH_MAX,
    LINE_LENGTH_MAX,
    MAGIC_V1,
    PING,
    LookupdInfo,
    Node,
    encode_identify,
    encode_register,
    encode_unregister,
)
from tests.fuzz.broker_session import NOW_NS
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack
from tests.kept import kept_size

NODE: Final = Node(broadcast_address="h", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")
_NAMES: Final = ((b"t",), (b"t", b"c"), (b"u", b"d#ephemeral"), (b"v#ephemeral", b"c"))
_REGISTER: Final = b"".join(encode_register(*names) for names in _NAMES)
_UNREGISTER: Final = b"".join(encode_unregister(*names) for names in _NAMES)

SEEDS: Final = [
    pack(MAGIC_V1 + PING + encode_identify(NODE) + _REGISTER, PING + _UNREGISTER, action=4),
    pack(MAGIC_V1 + encode_identify(NODE), _REGISTER, action=3),
    pack(MAGIC_V1 + b"REGISTER t\n"),
    pack(MAGIC_V1 + b"\xc2\xa0 PING \r\n" + PING, PING, action=7),
]
WORDS: Final = [
    *{event.encode() for events in TRANSITIONS.values() for event in events},
    MAGIC_V1,
    b"#ephemeral",
    b"\n",
]
CALLS_PER_UNIT: Final = 60
KEPT_MAX: Final = LINE_LENGTH_MAX + BODY_LENGTH_MAX


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    registry = Registry(inactive_producer_timeout_ns=10 * 10**9, tombstone_lifetime_ns=10 * 10**9)
    session = Session(registry, "192.0.2.1:9", LookupdInfo(tcp_port=4160))
    now_ns, output = NOW_NS, b""
    for each in rounds:
        now_ns += each.action * 10**9
        for piece in cut(each.content):
            session.receive_data(piece, now_ns)
            while session.has_input or session.outbox_full:
                output += session.data_to_send()
                session.process_input(now_ns)
    assert kept_size(session._decoder, session._unread) <= KEPT_MAX
    state = [(str(registration), len(peers)) for registration, peers in registry.registrations()]
    session.receive_eof(now_ns)
    while session.has_input:
        session.process_input(now_ns)
    assert session.ended
    assert session.peer is None
    assert not registry.active_peers(now_ns)
    assert not any(peers for _, peers in registry.registrations())
    return Outcome({"output": output + session.data_to_send()}, state)
