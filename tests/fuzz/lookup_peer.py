"""nsqd's end of a connection to an nsqlookupd: its answers. The action of a round selects the topics before it."""

from __future__ import annotations

from typing import Final

from nsqkit.broker.core.lookup_peer import LookupPeerSession
from nsqkit.errors import NSQError
from nsqkit.wire.lookup import OK_ANSWER, LookupdInfo, encode_answer, encode_info
from tests.fuzz.broker_session import NOW_NS, STEP_NS
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack
from tests.fuzz.lookupd_session import NODE
from tests.kept import kept_size

ANSWER_SIZE_MAX: Final = 2000
_TOPICS: Final = (b"t", b"u#ephemeral", b"v")
_INFO: Final = encode_answer(encode_info(LookupdInfo(broadcast_address="h", tcp_port=4160)))

SEEDS: Final = [
    pack(_INFO, *[OK_ANSWER] * 8, action=12),
    pack(_INFO, OK_ANSWER, encode_answer(b"E_INVALID client must IDENTIFY"), OK_ANSWER, action=28),
    pack(encode_answer(b"E_INVALID"), action=4),
    pack(_INFO + OK_ANSWER, OK_ANSWER, action=60),
    pack(encode_answer(bytes(ANSWER_SIZE_MAX)), action=3),
]
WORDS: Final = [OK_ANSWER, b"broadcast_address", b"tcp_port", b"http_port", b"version"]
CALLS_PER_UNIT: Final = 60


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    now_ns = NOW_NS
    names = {b"t": [b"c"]}
    session = LookupPeerSession(NODE, names, now_ns, answer_size_max=ANSWER_SIZE_MAX)
    sent = [session.data_to_send()]
    for each in rounds:
        wanted = [topic for bit, topic in enumerate(_TOPICS) if each.action >> bit & 1]
        names = {topic: [b"c", b"d"][: each.action >> 3 & 3] for topic in wanted}
        session.update(names, now_ns)
        sent.append(session.data_to_send())
        now_ns += STEP_NS * (each.action >> 5 & 1)
        session.handle_deadline(now_ns)
        for piece in cut(each.content):
            session.receive_data(piece, now_ns)
        sent.append(session.data_to_send())
    assert session.ended or kept_size(session._decoder, session._refusal) <= 2 * ANSWER_SIZE_MAX + 100
    assert session.error is None or isinstance(session.error, NSQError)
    if session.info and not session.ended and not session._queue:
        assert registered(b"".join(sent[1:])) == {(topic, name) for topic in names for name in (b"", *names[topic])}
    state = session.info, session.next_deadline(), repr(session.error)
    return Outcome({"sent": sent}, state, refused=session.ended)


def registered(commands: bytes) -> set[tuple[bytes, bytes]]:
    """Return the topics, and the channels with their topics, that an nsqlookupd has after these commands."""
    found: set[tuple[bytes, bytes]] = set()
    for words in (line.split() for line in commands.split(b"\n")):
        if words[:1] == [b"REGISTER"]:
            found |= {(words[1], b""), (words[1], words[2] if len(words) > 2 else b"")}
        elif words[:1] == [b"UNREGISTER"]:
            gone = words[2] if len(words) > 2 else None
            found = {(topic, name) for topic, name in found if topic != words[1] or gone not in (name, None)}
    return found
