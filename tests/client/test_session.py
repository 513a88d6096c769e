from __future__ import annotations

import json
import ssl
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.session import TURN_SIZE, ClientSession
from nsqkit.errors import (
    AuthFailed,
    BadBody,
    BrokerError,
    ConnectionLost,
    FinishFailed,
    HeartbeatTimeout,
    NegotiationFailed,
    NSQError,
    ProtocolError,
    Unauthorized,
)
from nsqkit.transport.machine import Machine
from nsqkit.transport.tls import TLS
from nsqkit.wire.auth import AuthAnswer
from nsqkit.wire.commands import (
    MAGIC_V2,
    NOP,
    encode_auth,
    encode_identify,
    encode_publish,
    encode_ready,
    encode_subscribe,
)
from nsqkit.wire.compression import Deflate
from nsqkit.wire.frames import (
    HEARTBEAT_FRAME,
    OK_FRAME,
    MessageFrame,
    Response,
    encode_error,
    encode_response,
    message_frames,
)
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.certificates import HOST, client_context, server_context
from tests.pairs import DrivenBroker, end_reason
from tests.strategies import chunkings, damaged, frames

S = 1_000_000_000
ANSWER = encode_response(b'{"max_rdy_count":77,"version":"1.3.0"}')


class Client(ClientSession[MessageFrame]):
    """A client that records its frames and answers heartbeats."""

    def __init__(self, *, max_msg_size: int = 1 << 20, **asked: Any) -> None:
        super().__init__(
            IdentifyRequest(client_id="me", feature_negotiation=True, **asked),
            read_timeout_ns=60 * S,
            max_msg_size=max_msg_size,
            now_ns=0,
        )
        self.frames: list[Any] = []
        self.end_count = 0

    def _make_messages(self, rows):
        return message_frames(rows)

    def _on_frames(self, frames, now_ns):
        self.frames += [
            frame for frame in frames if not (isinstance(frame, Response) and self._answer_heartbeat(frame))
        ]

    def _on_end(self):
        self.end_count += 1


@pytest.fixture
def client() -> Client:
    """A client after the handshake."""
    client = Client()
    client.data_to_send()
    client.receive_data(ANSWER, 0)
    assert client.is_open
    return client


class TestHandshake:
    def test_session_sends_magic_and_identify(self):
        client = Client()
        document = json.dumps({"client_id": "me", "feature_negotiation": True}).encode()
        assert client.has_output
        assert client.data_to_send() == MAGIC_V2 + encode_identify(document)
        assert client.data_to_send() == b""
        assert not client.has_output

    def test_answer_to_identify_opens_session(self):
        client = Client()
        assert not client.is_open
        assert client.answer is None
        client.receive_data(ANSWER, 0)
        assert client.is_open
        assert client.answer is not None
        assert client.answer.max_rdy_count == 77

    def test_ok_of_old_broker_opens_session(self):
        client = Client()
        client.receive_data(OK_FRAME, 0)
        assert client.is_open

    def test_frames_after_answer_are_processed(self):
        client = Client()
        client.receive_data(ANSWER + OK_FRAME, 0)
        assert client.frames == [Response(b"OK")]

    def test_error_ends_handshake(self):
        client = Client()
        client.receive_data(encode_error(BadBody("IDENTIFY heartbeat interval (5) is invalid")), 0)
        assert (client.ended, client.is_open) == (True, False)
        assert isinstance(client.error, BadBody)

    def test_nonfatal_error_ends_handshake(self):
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
    def test_other_frame_ends_handshake(self, frame):
        client = Client()
        client.receive_data(frame, 0)
        assert client.ended
        assert isinstance(client.error, ProtocolError)


class TestEnd:
    def test_eof_is_connection_lost(self, client):
        client.receive_eof(0)
        assert (client.ended, client.is_open, client.has_output) == (True, False, True)
        assert isinstance(client.error, ConnectionLost)

    def test_first_error_is_kept(self, client):
        client.end(None)
        client.receive_eof(0)
        client.end(ProtocolError("?"))
        assert client.error is None
        assert client.end_count == 1

    def test_output_before_end_is_sent(self, client):
        client.send(b"PUB t")
        client.end(None)
        assert client.data_to_send() == b"PUB t"

    def test_ended_session_ignores_input(self, client):
        client.end(None)
        client.receive_data(OK_FRAME, 0)
        client.receive_data(b"\xff" * 100, 0)
        assert client.frames == []
        assert client.error is None

    @pytest.mark.parametrize("size", [-1, 0, 3, 1 << 31, (1 << 20) + 35])
    def test_invalid_frame_size_ends_session(self, client, size):
        client.receive_data((size % (1 << 32)).to_bytes(4, "big"), 0)
        assert isinstance(client.error, ProtocolError)

    def test_max_msg_size_limits_messages(self):
        client = Client(max_msg_size=100_000)
        client.receive_data(ANSWER + encode_message(0, 1, b"0" * 16, bytes(100_000)), 0)
        assert not client.ended
        client.receive_data(encode_message(0, 1, b"0" * 16, bytes(100_001))[:8], 0)
        assert isinstance(client.error, ProtocolError)

    def test_small_max_msg_size_allows_responses(self):
        client = Client(max_msg_size=1)
        client.receive_data(ANSWER, 0)
        assert client.is_open


class TestTime:
    def test_heartbeat_is_answered(self, client):
        client.receive_data(HEARTBEAT_FRAME, 0)
        assert client.data_to_send() == NOP
        assert client.frames == []

    def test_silent_broker_ends_session(self, client):
        assert client.next_deadline() == 60 * S
        client.receive_data(HEARTBEAT_FRAME, 30 * S)
        assert client.next_deadline() == 90 * S
        client.handle_deadline(90 * S - 1)
        assert not client.ended
        client.handle_deadline(90 * S)
        assert isinstance(client.error, HeartbeatTimeout)
        assert str(client.error) == "the broker was silent for 60 seconds"
        assert client.next_deadline() is None

    def test_part_of_frame_postpones_deadline(self, client):
        client.receive_data(OK_FRAME[:3], 59 * S)
        assert client.next_deadline() == 119 * S

    def test_ended_session_has_no_deadline(self, client):
        client.end(None)
        client.handle_deadline(1000 * S)
        assert client.error is None

    def test_session_without_heartbeats_has_no_deadline(self):
        client = Client(heartbeat_interval=-1)
        client.receive_data(ANSWER, 0)
        assert client.next_deadline() is None
        client.handle_deadline(1000 * S)
        assert client.is_open

    def test_client_outbox_is_never_full(self, client):
        client.send(bytes(100 << 20))
        assert not client.outbox_full


@given(
    st.lists(frames(), max_size=8).flatmap(
        lambda samples: st.tuples(st.just(samples), chunkings(ANSWER + b"".join(sample.data for sample in samples)))
    )
)
def test_frames_in_any_pieces_are_equal(case):
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
def test_garbage_ends_session_with_nsq_error(data):
    client = Client()
    for start in range(0, len(data), 7):
        client.receive_data(data[start : start + 7], 0)
    client.receive_eof(0)
    assert client.ended
    assert isinstance(client.error, NSQError)


# ---- layers, against the broker ------------------------------------------------------------------------------------

COMPRESSIONS: dict[str, dict[str, Any]] = {
    "": {},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True, "deflate_level": 2},
}


class Pair:
    """A client's session and a broker's, connected by bytes.

    Args:
        cut: how many bytes arrive at once; None for all.
        secret: what the client has for AUTH.
        context: the client's rules of TLS; None to trust the certificate of the broker.
        hostname: whose certificate the client expects.
        options: the broker's.
        asked: the fields that the client sends in IDENTIFY.
    """

    def __init__(
        self,
        *,
        cut: int | None = None,
        secret: str = "",
        context: ssl.SSLContext | None = None,
        hostname: str = HOST,
        options: dict[str, Any] | None = None,
        **asked: Any,
    ) -> None:
        self.driven = DrivenBroker(**(options or {}))
        self.driven.broker.offer_tls(partial(TLS, server_context()))
        self.session = self.driven.broker.open_session("10.0.0.1:1", self.driven.now_ns)
        self.client = Client(**asked)
        self.client.secure(
            make_tls=lambda: TLS(context or client_context(), server_hostname=hostname), auth_secret=secret
        )
        self.wire = b""
        self._cut = cut

    def exchange(self) -> None:
        """Pass bytes until neither has output."""
        client, session, driven = self.client, self.session, self.driven
        moved = True
        while moved:
            moved = False
            while data := client.data_to_send():
                self.wire += data
                self._hand(session, data, driven.now_ns)
                moved = True
            driven.settle()
            while data := session.data_to_send():
                self.wire += data
                self._hand(client, data, 0)
                moved = True

    def _hand(self, machine: Machine, data: bytes, now_ns: int) -> None:
        size = self._cut or len(data)
        for start in range(0, len(data), size):
            machine.receive_data(data[start : start + size], now_ns)
            while machine.has_input:
                machine.process_input(now_ns)

    def consume(self, *bodies: bytes) -> list[bytes]:
        """Publish, subscribe and receive."""
        self.client.send(b"".join(encode_publish(b"t", body) for body in bodies))
        self.client.send(encode_subscribe(b"t", b"c") + encode_ready(100))
        self.exchange()
        assert self.client.frames[: len(bodies) + 1] == [Response(b"OK")] * (len(bodies) + 1)
        return [frame.body for frame in self.client.frames[len(bodies) + 1 :]]


class TestLayers:
    @pytest.mark.parametrize("cut", [None, 1, 7])
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @pytest.mark.parametrize("tls", [True, False])
    def test_data_pass_granted_layers(self, tls, compression, cut):
        pair = Pair(cut=cut, tls_v1=tls, **COMPRESSIONS[compression])
        pair.exchange()
        client = pair.client
        assert client.error is None
        assert client.is_open
        assert client.answer is not None
        assert client.answer.tls_v1 is tls
        assert (client.answer.snappy, client.answer.deflate) == (
            compression == "snappy",
            compression == "deflate",
        )
        assert pair.consume(b"hello " * 100, b"\0" * 70_000) == [b"hello " * 100, b"\0" * 70_000]
        assert (b"hello hello" in pair.wire) is not (tls or bool(compression))

    def test_refused_compression_is_not_used(self):
        pair = Pair(snappy=True, options={"snappy": False})
        pair.exchange()
        assert pair.client.is_open
        assert pair.consume(b"hello") == [b"hello"]
        assert b"hello" in pair.wire

    def test_refused_tls_ends_session(self):
        pair = Pair(tls_v1=True, secret="hush")
        pair.driven.broker.sessions.make_tls = None
        pair.client.receive_data(encode_response(b'{"auth_required":true}'), 0)
        assert isinstance(pair.client.error, NegotiationFailed)
        assert b"hush" not in pair.client.data_to_send()

    @pytest.mark.parametrize(
        ("context", "hostname", "why"),
        [
            (ssl.create_default_context(), HOST, "unable to get local issuer certificate"),
            (None, "other.example.org", "Hostname mismatch"),
        ],
    )
    def test_wrong_certificate_ends_session(self, context, hostname, why):
        pair = Pair(tls_v1=True, context=context, hostname=hostname)
        pair.exchange()
        error = pair.client.error
        assert isinstance(error, NegotiationFailed)
        assert str(error).startswith("tls: failed to verify server certificate: ")
        assert why in str(error)
        assert isinstance(error.__cause__, ProtocolError)
        assert pair.session.ended, "it received an alert"
        reason = str(end_reason(pair.session))
        assert "alert" in reason or "certificate" in reason

    @pytest.mark.parametrize("data", [OK_FRAME, b"\0" * 64, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
    def test_other_protocol_than_tls_ends_session(self, data):
        client = Client(tls_v1=True)
        client.secure(make_tls=lambda: TLS(client_context(), server_hostname=HOST))
        client.receive_data(encode_response(b'{"tls_v1":true}') + data, 0)
        assert isinstance(client.error, NegotiationFailed)
        assert str(client.error).startswith("tls: ")

    @pytest.mark.parametrize("compression", ["snappy", "deflate"])
    def test_damaged_layer_ends_session(self, compression):
        pair = Pair(**COMPRESSIONS[compression])
        pair.exchange()
        pair.client.receive_data(b"\xff" * 30, 0)
        assert isinstance(pair.client.error, ProtocolError)

    def test_decompressed_data_are_limited(self):
        client = Client(deflate=True)
        client.receive_data(encode_response(b'{"deflate":true}') + Deflate(9).encode(OK_FRAME + bytes(1 << 26)), 0)
        assert isinstance(client.error, ProtocolError)
        assert "frame size 0 is out of range" in str(client.error)

    def test_earlier_output_is_sent_before_layer(self):
        """A broker can answer before it gets the command."""
        client = Client(deflate=True)
        client.receive_data(encode_response(b'{"deflate":true}'), 0)
        assert client.has_output
        data = client.data_to_send()
        assert data.startswith(MAGIC_V2)
        assert b"IDENTIFY" in data

    def test_closed_tls_ends_session(self):
        pair = Pair(tls_v1=True)
        pair.exchange()
        assert isinstance(pair.session.tls, TLS)
        pair.client.receive_data(pair.session.tls.end(), 0)
        assert isinstance(pair.client.error, ConnectionLost)

    def test_alert_is_sent_after_end(self):
        pair = Pair(tls_v1=True, hostname="other.example.org")
        pair.exchange()
        assert b"\x15\x03" in pair.wire

    def test_heartbeat_between_layers_is_answered(self):
        client = Client(deflate=True)
        client.data_to_send()
        client.receive_data(encode_response(b'{"deflate":true}') + Deflate(6).encode(HEARTBEAT_FRAME), 0)
        assert b"".join(Deflate(6).decode(client.data_to_send())) == NOP
        assert not client.is_open


@given(
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from(list(COMPRESSIONS)),
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=9),
)
def test_messages_pass_layers_in_any_pieces(cut, tls, compression, bodies):
    pair = Pair(cut=cut, tls_v1=tls, **COMPRESSIONS[compression])
    pair.exchange()
    assert pair.consume(*bodies) == bodies


@given(st.booleans(), st.sampled_from(list(COMPRESSIONS)), st.data())
def test_garbage_during_handshake_ends_session_with_nsq_error(tls, compression, data):
    pair = Pair(tls_v1=tls, **COMPRESSIONS[compression])
    client, session, driven = pair.client, pair.session, pair.driven
    for _ in range(data.draw(st.integers(0, 3))):
        while sent := client.data_to_send():
            session.receive_data(sent, driven.now_ns)
        while sent := session.data_to_send():
            client.receive_data(sent, 0)
    client.receive_data(data.draw(st.binary(max_size=80)), 0)
    client.receive_data(data.draw(damaged(ANSWER + OK_FRAME)), 0)
    client.data_to_send()
    client.receive_eof(0)
    assert client.ended
    assert isinstance(client.error, NSQError)


class TestAuth:
    def opened(self) -> Client:
        client = Client()
        client.secure(auth_secret="hush")
        client.data_to_send()
        client.receive_data(encode_response(b'{"auth_required":true}'), 0)
        return client

    def test_secret_is_sent_if_required(self):
        client = self.opened()
        assert client.data_to_send() == encode_auth(b"hush")
        assert (client.is_authenticating, client.is_open) == (True, False)
        client.receive_data(encode_response(b'{"identity":"me","permission_count":1}'), 0)
        assert (client.is_authenticating, client.is_open) == (False, True)
        assert client.auth == AuthAnswer(identity="me", permission_count=1)
        assert client.answer is not None
        assert client.answer.auth_required

    def test_heartbeats_are_answered_during_auth(self):
        client = self.opened()
        client.data_to_send()
        client.receive_data(HEARTBEAT_FRAME * 2, 0)
        assert client.data_to_send() == NOP
        assert client.is_authenticating

    @pytest.mark.parametrize("error", [AuthFailed("AUTH failed"), Unauthorized("AUTH no authorizations found")])
    def test_refused_auth_ends_session(self, error):
        client = self.opened()
        client.receive_data(encode_error(error), 0)
        assert type(client.error) is type(error)
        assert "hush" not in str(client.error)

    def test_required_auth_without_secret_ends_session(self):
        client = Client()
        client.data_to_send()
        client.receive_data(encode_response(b'{"auth_required":true}'), 0)
        assert isinstance(client.error, NegotiationFailed)
        assert client.data_to_send() == b""

    def test_secret_is_not_sent_unless_required(self):
        client = Client()
        client.secure(auth_secret="hush")
        client.receive_data(ANSWER, 0)
        assert client.is_open
        assert b"hush" not in client.data_to_send()
        assert client.auth is None


class TestTurns:
    """Data from a few compressed bytes are processed in turns of limited size."""

    HEARTBEATS = HEARTBEAT_FRAME * 500_000  # 9.5 MB

    def begin(self, after: bytes = b"") -> tuple[Client, Deflate]:
        client = Client(deflate=True)
        layer = Deflate(9)
        client.receive_data(encode_response(b'{"deflate":true}') + layer.encode(OK_FRAME), 0)
        client.data_to_send()
        assert client.is_open
        assert not client.has_input
        client.receive_data(layer.encode(self.HEARTBEATS + after), 1)
        return client, layer

    def test_turn_processes_at_most_turn_size(self):
        client, _ = self.begin()
        turn_count = 1
        while client.has_input:
            client.process_input(1)
            turn_count += 1
        assert turn_count == pytest.approx(len(self.HEARTBEATS) / TURN_SIZE, abs=2)
        assert not client.ended

    def test_several_heartbeats_have_one_answer(self):
        client, _ = self.begin()
        while client.has_input:
            client.process_input(1)
        assert client._outbox == [NOP]

    def test_later_data_are_processed_after_rest(self):
        client, layer = self.begin(encode_message(0, 1, b"0" * 16, b"first"))
        client.receive_data(layer.encode(encode_message(0, 1, b"1" * 16, b"second")), 1)
        assert client.frames == []
        while client.has_input:
            client.process_input(1)
        assert [frame.body for frame in client.frames] == [b"first", b"second"]

    def test_eof_is_processed_after_rest(self):
        client, _ = self.begin(encode_message(0, 1, b"0" * 16, b"last"))
        client.receive_eof(1)
        assert not client.ended
        while client.has_input:
            client.process_input(1)
        assert [frame.body for frame in client.frames] == [b"last"]
        assert isinstance(client.error, ConnectionLost)

    def test_error_in_later_turn_ends_session(self):
        client, _ = self.begin(bytes(64))
        while client.has_input:
            client.process_input(1)
        assert isinstance(client.error, ProtocolError)

    def test_ended_session_has_no_input(self):
        client, _ = self.begin()
        client.end(None)
        assert not client.has_input
        client.process_input(1)
        assert client.error is None
