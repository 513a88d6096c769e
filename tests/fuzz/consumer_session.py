"""A consumer's end of a connection: everything that a broker may send.

In odd modes the subscription is done before the first round. The action of a round is what the consumer does before it.
"""

from __future__ import annotations

from typing import Final

from nsqkit.consumer.session import Answered, ConsumerSession, Received, TimedOut
from nsqkit.errors import FinishFailed, InvalidCommand, NSQError, TouchFailed
from nsqkit.wire.commands import BARRIER_ID
from nsqkit.wire.compression import Deflate
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.fuzz.broker_session import NOW_NS, STEP_NS
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack
from tests.kept import kept_size

IDENTITY: Final = IdentifyRequest(feature_negotiation=True, heartbeat_interval=1000, snappy=True, deflate=True)
KEPT_MAX: Final = 2 * (1 << 16) + 4096
ANSWER: Final = b'{"max_rdy_count":2500,"msg_timeout":1000,"max_msg_timeout":2000'
MESSAGES: Final = b"".join(encode_message(NOW_NS, 1 + number, b"%016x" % number, b"body") for number in range(9))
ERRORS: Final = b"".join(
    encode_error(error(f"FIN {message_id} failed ID not in flight"))
    for error in (FinishFailed, TouchFailed)
    for message_id in (BARRIER_ID.decode(), f"{1:016x}")
)
_DEFLATE = encode_response(ANSWER + b',"deflate":true}') + Deflate(6).encode(OK_FRAME + OK_FRAME + MESSAGES)

SEEDS: Final = [
    pack(encode_response(ANSWER + b"}"), OK_FRAME, MESSAGES, b""),
    pack(encode_response(ANSWER + b',"auth_required":true}'), encode_response(b'{"identity":"i"}'), OK_FRAME),
    pack(_DEFLATE),
    pack(encode_response(ANSWER + b',"snappy":true}') + b"\xff\x06\x00\x00sNaPpY"),
    *(pack(MESSAGES, ERRORS, MESSAGES, CLOSE_WAIT_FRAME, mode=1, action=4 * bits) for bits in (1, 2, 4, 11, 24, 42)),
    pack(HEARTBEAT_FRAME, HEARTBEAT_FRAME * 2, mode=1),
    pack(encode_error(InvalidCommand("cannot SUB in current state")), mode=1),
    pack(MESSAGES, mode=1, action=3),
]
WORDS: Final = [
    OK_FRAME,
    HEARTBEAT_FRAME,
    CLOSE_WAIT_FRAME,
    MESSAGES[:34],
    b"E_FIN_FAILED ",
    b"E_TOUCH_FAILED ",
    BARRIER_ID,
]
CALLS_PER_UNIT: Final = 60


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    limits = {"read_timeout_ns": 60 * STEP_NS, "max_msg_size": 1000, "now_ns": NOW_NS}
    session = ConsumerSession(IDENTITY, b"t", b"c", address="192.0.2.1:4150", **limits)
    session.secure(auth_secret="secret")
    if mode & 1:
        session.receive_data(encode_response(ANSWER + b"}") + OK_FRAME, NOW_NS)
    now_ns, sent = NOW_NS, session.data_to_send()
    events: list[object] = []
    for each in rounds:
        now_ns += STEP_NS
        act(session, each.action, now_ns)
        for piece in cut(each.content):
            session.receive_data(piece, now_ns)
            while session.has_input:
                session.process_input(now_ns)
        sent += session.data_to_send()
        events += session.events()
    assert kept_size(session._decoder, session._unread, session._layers) <= KEPT_MAX
    assert session.error is None or isinstance(session.error, NSQError)
    received = [message for event in events if isinstance(event, Received) for message in event.messages]
    assert {id(message) for message in session.held.values()} <= {id(message) for message in received}
    timed_out = sorted(message.id for event in events if isinstance(event, TimedOut) for message in event.messages)
    finished = [message_id for event in events if isinstance(event, Answered) for message_id in event.finished]
    ids = [(message.id, message.attempts, message.body) for message in received]
    state = sent, session.counts, sorted(session.held), timed_out, finished, session.state
    return Outcome({"messages": ids}, state, refused=session.ended)


def act(session: ConsumerSession, action: int, now_ns: int) -> None:
    """Do what the bits of an action select: answers to all messages, RDY, a barrier, the time, the end."""
    messages = list(session.held.values())
    for message in messages:
        if action & 1:
            session.touch(message, now_ns)
        if action & 2:
            session.finish(message)
        elif action & 4:
            session.requeue(message, 100, backoff=True)
    if session.is_open and action & 8:
        session.send_ready(10)
        session.add_barrier()
    if action & 16:
        session.expire(now_ns)
        session.handle_deadline(now_ns)
    if action & 32:
        session.start_close()
        session.end_if_answered()
