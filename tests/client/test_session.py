from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.session import ClientSession
from nsqkit.errors import (
    BadBody,
    BrokerError,
    ConnectionLost,
    FinishFailed,
    HeartbeatTimeout,
    NSQError,
    ProtocolError,
)
from nsqkit.wire.commands import MAGIC_V2, NOP, encode_identify
from nsqkit.wire.frames import (
    HEARTBEAT_FRAME,
    OK_FRAME,
    MessageFrame,
    Response,
    encode_error,
    encode_response,
)
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.strategies import chunkings, damaged, frames

S = 1_000_000_000
ANSWER = encode_response(b'{"max_rdy_count":77,"version":"1.3.0"}')


class Client(ClientSession[MessageFrame]):
    """A client that records its frames and answers heartbeats."""

    def __init__(self, *, max_msg_size: int = 1 << 20) -> None:
        super().__init__(
            IdentifyRequest(client_id="me", feature_negotiation=True),
            MessageFrame,
            read_timeout_ns=60 * S,
            max_msg_size=max_msg_size,
            now_ns=0,
        )
        self.frames: list[object] = []
        self.end_count = 0

    def _on_frames(self, frames, now_ns):
        self.frames += [
            frame for frame in frames if not (isinstance(frame, Response) and self._answer_heartbeat(frame))
        ]

    def _on_end(self):
        self.end_count += 1


@pytest.fixture
def client() -> Client:
    """A client that was greeted."""
    client = Client()
    client.data_to_send(0)
    client.receive_data(ANSWER, 0)
    assert client.is_open
    return client


class TestGreeting:
    def test_it_begins_with_magic_and_identify(self):
        client = Client()
        document = json.dumps({"client_id": "me", "feature_negotiation": True}).encode()
        assert client.has_output
        assert client.data_to_send(0) == MAGIC_V2 + encode_identify(document)
        assert client.data_to_send(0) == b""
        assert not client.has_output

    def test_the_answer_opens_it(self):
        client = Client()
        assert not client.is_open
        assert client.answer is None
        client.receive_data(ANSWER, 0)
        assert client.is_open
        assert client.answer is not None
        assert client.answer.max_rdy_count == 77

    def test_a_plain_ok_is_an_answer_of_an_old_broker(self):
        client = Client()
        client.receive_data(OK_FRAME, 0)
        assert client.is_open

    def test_what_comes_with_the_answer_is_taken(self):
        client = Client()
        client.receive_data(ANSWER + OK_FRAME, 0)
        assert client.frames == [Response(b"OK")]

    def test_an_error_ends_it(self):
        client = Client()
        client.receive_data(encode_error(BadBody("IDENTIFY heartbeat interval (5) is invalid")), 0)
        assert (client.ended, client.is_open) == (True, False)
        assert isinstance(client.error, BadBody)

    def test_even_an_error_that_is_not_fatal_ends_it(self):
        client = Client()
        client.receive_data(encode_error(FinishFailed("?")), 0)
        assert isinstance(client.error, FinishFailed)

    @pytest.mark.parametrize(
        "frame",
        [
            encode_message(0, 1, b"0" * 16, b"x"),
            encode_response(b"_heartbeat_"),
            encode_response(b"[]"),
            encode_response(b"\xff"),
            encode_response(b'{"max_rdy_count":"many"}'),
            encode_response(b"{" * 60_000),
        ],
    )
    def test_anything_else_is_not_the_protocol(self, frame):
        client = Client()
        client.receive_data(frame, 0)
        assert client.ended
        assert isinstance(client.error, ProtocolError)


class TestTheEnd:
    def test_the_end_of_the_stream_is_a_lost_connection(self, client):
        client.receive_eof(0)
        assert (client.ended, client.is_open, client.has_output) == (True, False, True)
        assert isinstance(client.error, ConnectionLost)

    def test_the_first_reason_stays(self, client):
        client.end(None)
        client.receive_eof(0)
        client.end(ProtocolError("?"))
        assert client.error is None
        assert client.end_count == 1

    def test_what_was_said_before_is_still_sent(self, client):
        client.send(b"PUB t")
        client.end(None)
        assert client.data_to_send(0) == b"PUB t"

    def test_nothing_is_taken_after_it(self, client):
        client.end(None)
        client.receive_data(OK_FRAME, 0)
        client.receive_data(b"\xff" * 100, 0)
        assert client.frames == []
        assert client.error is None

    @pytest.mark.parametrize("size", [-1, 0, 3, 1 << 31, (1 << 20) + 35])
    def test_a_size_that_no_frame_has_ends_it_at_once(self, client, size):
        client.receive_data((size % (1 << 32)).to_bytes(4, "big"), 0)
        assert isinstance(client.error, ProtocolError)

    def test_the_limit_of_a_message_is_the_option(self):
        client = Client(max_msg_size=100_000)
        client.receive_data(ANSWER + encode_message(0, 1, b"0" * 16, bytes(100_000)), 0)
        assert not client.ended
        client.receive_data(encode_message(0, 1, b"0" * 16, bytes(100_001))[:8], 0)
        assert isinstance(client.error, ProtocolError)

    def test_a_small_limit_leaves_room_for_answers(self):
        client = Client(max_msg_size=1)
        client.receive_data(ANSWER, 0)
        assert client.is_open


class TestTime:
    def test_a_heartbeat_is_answered(self, client):
        client.receive_data(HEARTBEAT_FRAME, 0)
        assert client.data_to_send(0) == NOP
        assert client.frames == []

    def test_a_silent_broker_counts_as_dead(self, client):
        assert client.next_deadline() == 60 * S
        client.receive_data(HEARTBEAT_FRAME, 30 * S)
        assert client.next_deadline() == 90 * S
        client.handle_deadline(90 * S - 1)
        assert not client.ended
        client.handle_deadline(90 * S)
        assert isinstance(client.error, HeartbeatTimeout)
        assert str(client.error) == "the broker was silent for 60 seconds"
        assert client.next_deadline() is None

    def test_half_a_frame_is_a_sign_of_life(self, client):
        client.receive_data(OK_FRAME[:3], 59 * S)
        assert client.next_deadline() == 119 * S

    def test_after_the_end_no_deadline_counts(self, client):
        client.end(None)
        client.handle_deadline(1000 * S)
        assert client.error is None

    def test_a_client_never_stops_reading(self, client):
        client.send(bytes(100 << 20))
        assert not client.outbox_full


@given(
    st.lists(frames(), max_size=8).flatmap(
        lambda samples: st.tuples(
            st.just(samples), chunkings(ANSWER + b"".join(sample.data for sample in samples))
        )
    )
)
def test_in_whatever_pieces_the_frames_come_they_are_the_same(case):
    samples, chunks = case
    client = Client()
    for chunk in chunks:
        client.receive_data(chunk, 0)
    assert not client.ended
    got = [(type(f), f.description) if isinstance(f, BrokerError) else f for f in client.frames]
    assert got == [sample.value for sample in samples if sample.data != HEARTBEAT_FRAME]


@given(
    st.lists(frames(), max_size=3).flatmap(
        lambda samples: damaged(ANSWER + b"".join(sample.data for sample in samples))
    )
)
def test_garbage_ends_it_by_a_typed_error_or_not_at_all(data):
    client = Client()
    for start in range(0, len(data), 7):
        client.receive_data(data[start : start + 7], 0)
    client.receive_eof(0)
    assert client.ended
    assert isinstance(client.error, NSQError)
