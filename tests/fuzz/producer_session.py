"""A producer's end of a connection: everything that a broker may send.

Before a round, as many messages are published as the action says. In odd modes the handshake is done before the first
round, and the next bit of the mode has single publishes gathered.
"""

from __future__ import annotations

from typing import Final

from nsqkit.errors import BadTopic, NSQError, PublishFailed
from nsqkit.producer.linger import Linger
from nsqkit.producer.session import Answers, ProducerSession
from nsqkit.wire.commands import encode_publish
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from tests.fuzz.broker_session import NOW_NS, STEP_NS
from tests.fuzz.consumer_session import ANSWER, IDENTITY, KEPT_MAX, MESSAGES
from tests.fuzz.consumer_session import SEEDS as CONSUMER_SEEDS
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack
from tests.kept import kept_size

_ERRORS = encode_error(PublishFailed("PUB failed")), encode_error(BadTopic("PUB topic name"))
SEEDS: Final = [
    *CONSUMER_SEEDS[:4],
    pack(encode_response(ANSWER + b"}"), OK_FRAME * 3, HEARTBEAT_FRAME, _ERRORS[1], action=12),
    *(pack(OK_FRAME * 2, _ERRORS[0], OK_FRAME, HEARTBEAT_FRAME, mode=mode, action=16) for mode in (1, 3)),
    *(pack(OK_FRAME, _ERRORS[1] + OK_FRAME, mode=mode, action=20) for mode in (1, 3)),
    *(pack(b"", mode=mode, action=16) for mode in (1, 3)),
    pack(b"", b"", MESSAGES, mode=1, action=4),
]
WORDS: Final = [OK_FRAME, HEARTBEAT_FRAME, MESSAGES[:34], *_ERRORS]
CALLS_PER_UNIT: Final = 60


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    linger = Linger(linger_ns=STEP_NS, count_max=3, size_max=1000) if mode & 2 else None
    limits = {"read_timeout_ns": 60 * STEP_NS, "max_msg_size": 1000, "now_ns": NOW_NS}
    session = ProducerSession(IDENTITY, linger=linger, **limits)
    session.secure(auth_secret="secret")
    if mode & 1:
        session.receive_data(encode_response(ANSWER + b"}"), NOW_NS)
    sent, count = session.data_to_send(), 0
    events: list[object] = []
    for each in rounds:
        for _ in range(each.action if session.is_ready else 0):
            count += 1
            if linger is None:
                session.publish(encode_publish(b"t", b"body"), count)
            else:
                linger.join(b"t", b"body", count)
                session.check_linger()
        if count and each.action & 1 and session.withdraw(count):
            count -= 1
        sent += session.data_to_send()
        for piece in cut(each.content):
            session.receive_data(piece, NOW_NS)
            while session.has_input:
                session.process_input(NOW_NS)
        events += session.events()
    assert kept_size(session._decoder, session._unread, session._layers) <= KEPT_MAX
    refused, state = session.ended, (sent, session.state, session.outstanding_count)
    session.end(None)
    lost = session.events()
    assert not any(each.ok for each in lost if isinstance(each, Answers)), "a lost publish was acknowledged"
    assert session.error is None or isinstance(session.error, NSQError)
    answers = [event for event in (*events, *lost) if isinstance(event, Answers)]
    ok = [token for each in answers for token in each.ok]
    failed = [token for each in answers for token, _ in each.failed]
    assert sorted((*ok, *failed)) == list(range(1, count + 1)), "a publish has no answer, or two"
    return Outcome({"ok": ok}, state, refused)
