"""TLS and compression of a session, requested in IDENTIFY: a client's side of the layers, against the broker's."""

from __future__ import annotations

import json
import ssl
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.report.stats import collect
from nsqkit.broker.core.session.heartbeat import HANDSHAKE_TIMEOUT_NS
from nsqkit.errors import BrokerError
from nsqkit.transport.tls import TLS
from nsqkit.wire.commands import (
    CLS,
    MAGIC_V2,
    NOP,
    encode_identify,
    encode_multi_publish,
    encode_publish,
    encode_ready,
    encode_subscribe,
)
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import OK_FRAME, FrameDecoder, MessageFrame, Response
from nsqkit.wire.transform import Transform
from tests.certificates import HOST, client_context, server_context
from tests.pairs import NS_PER_S, START_NS, DrivenBroker, end_reason

PUB = encode_publish(b"t", b"m")
SUB = encode_subscribe(b"t", b"c")
COMPRESSIONS = {"": None, "snappy": Snappy, "deflate": partial(Deflate, 3)}


@pytest.fixture
def driven() -> DrivenBroker:
    return with_tls()


def with_tls(**options) -> DrivenBroker:
    if "tls_required" in options:
        options |= {"tls_cert": "server.pem", "tls_key": "server.key"}
    driven = DrivenBroker(**options)
    driven.broker.offer_tls(partial(TLS, server_context()))
    return driven


class LayeredClient:
    """A client that sends IDENTIFY, and then uses the granted layers.

    Args:
        driven: the broker.
        tls: ask for TLS.
        compression: what else to ask for.
        cut: how many bytes arrive at once; None for all.
    """

    def __init__(
        self,
        driven: DrivenBroker,
        *,
        tls: bool = False,
        compression: str = "",
        cut: int | None = None,
        **asked: object,
    ) -> None:
        self.session = driven.broker.open_session("10.0.0.1:1", driven.now_ns)
        self.answers: list[object] = []
        self._driven, self._cut = driven, cut
        self._layers: list[Transform] = []
        self._decoder = FrameDecoder()
        document = {"feature_negotiation": True, "tls_v1": tls, **asked}
        if compression:
            document[compression] = True
        self.feed(MAGIC_V2 + encode_identify(json.dumps(document).encode()))
        answer = self.session.data_to_send()
        end = 4 + int.from_bytes(answer[:4], "big")
        self.granted = json.loads(answer[8:end])
        make = COMPRESSIONS[compression]
        self._compression = make() if make else None
        if tls:
            self._layers.append(TLS(client_context(), server_hostname=HOST))
            self.feed(self._layers[0].encode(b""))
        else:
            self._compress()
        self._take(answer[end:])
        self._go_on()

    def feed(self, data: bytes) -> None:
        """Hand the broker bytes as they are."""
        size = self._cut or max(len(data), 1)
        for start in range(0, len(data), size):
            self.session.receive_data(data[start : start + size], self._driven.now_ns)
            self._driven.settle()

    def _compress(self) -> None:
        """Begin with the compression, which is inside TLS, after the OK that is sent there."""
        if self._compression is not None:
            self._layers.append(self._compression)
            self._compression = None

    def exchange(self, *commands: bytes) -> list[object]:
        """Send through the layers, and return the answers."""
        data = b"".join(commands)
        for layer in reversed(self._layers):
            data = layer.encode(data)
        self.feed(data)
        return self.read()

    def read(self) -> list[object]:
        """Return the answers."""
        self._go_on()
        answers, self.answers = self.answers, []
        return answers

    def _go_on(self) -> None:
        while data := self.session.data_to_send():
            self._take(data)

    def _take(self, data: bytes) -> None:
        for layer in self._layers:
            data = b"".join(layer.decode(data))
        if data and self._compression is not None:
            assert data.startswith(OK_FRAME)
            self.answers.append(b"OK")
            self._compress()
            data = b"".join(self._layers[-1].decode(data[len(OK_FRAME) :]))
        self.answers += [_shown(frame) for frame in self._decoder.feed(data)]
        if self._layers and self._layers[0].has_output:
            self.feed(self._layers[0].encode(b""))


def _shown(frame: object) -> object:
    if isinstance(frame, Response):
        return frame.payload
    return encode_error_text(frame) if isinstance(frame, BrokerError) else frame


# ---- granted layers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [None, 1])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("tls", [True, False])
def test_each_layer_begins_with_ok_and_encodes_all_that_follows(driven, tls, compression, cut):
    client = LayeredClient(driven, tls=tls, compression=compression, cut=cut)
    assert client.granted["tls_v1"] is tls
    assert client.granted["snappy"] is (compression == "snappy")
    assert client.granted["deflate"] is (compression == "deflate")
    assert client.exchange() == [b"OK"] * (tls + bool(compression))
    assert client.exchange(PUB, SUB) == [b"OK", b"OK"]
    driven.publish(b"hello" * 30_000)
    first, second = client.exchange(encode_ready(2))
    assert isinstance(first, MessageFrame)
    assert isinstance(second, MessageFrame)
    assert [first.body, second.body] == [b"m", b"hello" * 30_000]
    assert client.exchange(CLS) == [b"CLOSE_WAIT"]


def test_bytes_behind_identify_in_one_buffer_go_through_the_layers(driven):
    tls, snappy = TLS(client_context(), server_hostname=HOST), Snappy()
    session = driven.broker.open_session("10.0.0.1:1", driven.now_ns)
    identify = encode_identify(b'{"feature_negotiation": true, "tls_v1": true, "snappy": true}')
    session.receive_data(MAGIC_V2 + identify + tls.encode(snappy.encode(PUB)), driven.now_ns)
    data = session.data_to_send()
    data = data[4 + int.from_bytes(data[:4], "big") :]
    plain = b"".join(tls.decode(data))
    session.receive_data(tls.encode(b""), driven.now_ns)
    plain += b"".join(tls.decode(session.data_to_send()))
    assert plain.startswith(OK_FRAME), "the first OK is sent inside TLS, the others inside both"
    assert b"".join(snappy.decode(plain[len(OK_FRAME) :])) == OK_FRAME * 2


@given(st.integers(1, 300), st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=9))
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_pass_layers_in_any_pieces(compression, cut, bodies):
    client = LayeredClient(with_tls(), tls=True, compression=compression, cut=cut)
    answers = client.exchange(encode_multi_publish(b"t", bodies), SUB, encode_ready(100))
    messages = [answer.body for answer in answers if isinstance(answer, MessageFrame)]
    assert messages == bodies


def test_tls_is_not_granted_unless_offered():
    client = DrivenBroker().client()
    assert client.identify(tls_v1=True)["tls_v1"] is False
    assert client.exchange(PUB) == [b"OK"]


def test_second_identify_keeps_the_compression_inside_tls(driven):
    client = LayeredClient(driven, tls=True, compression="snappy")
    client.read()
    (answer,) = client.exchange(encode_identify(b'{"feature_negotiation": true}'))
    assert isinstance(answer, bytes)
    assert json.loads(answer)["snappy"] is False
    assert client.exchange(PUB) == [b"OK"], "what there is stays"
    stats = _client_stats(driven)
    assert (stats["tls"], stats["snappy"], stats["deflate"]) == (True, True, False)


def _client_stats(driven: DrivenBroker) -> dict[str, object]:
    producers = collect(driven.broker, driven.now_ns)["producers"]
    assert producers is not None
    (stats,) = producers
    return dict(stats)


def test_stats_include_the_layers(driven):
    client = LayeredClient(driven, tls=True, compression="deflate")
    client.exchange(PUB)
    stats = _client_stats(driven)
    assert {key: stats[key] for key in ("tls", "tls_version", "tls_negotiated_protocol", "deflate", "snappy")} == {
        "tls": True,
        "tls_version": "TLS1.3",
        "tls_negotiated_protocol": "",
        "deflate": True,
        "snappy": False,
    }
    assert stats["tls_negotiated_protocol_is_mutual"] is True
    assert str(stats["tls_cipher_suite"]).startswith("Unknown ")


# ---- required TLS -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", ["true", "tcp-https"])
@pytest.mark.parametrize(
    ("line", "verb"), [(PUB, b"PUB"), (SUB, b"SUB"), (NOP, b"NOP"), (b"FOO bar\n", b"FOO"), (b"\n", b"")]
)
def test_required_tls_allows_only_identify_without_it(required, line, verb):
    driven = with_tls(tls_required=required)
    refusal = b"E_INVALID cannot %b in current state (TLS required)" % verb
    client = driven.client()
    assert client.exchange(line) == [refusal]
    assert client.session.ended
    client = driven.client()
    client.identify()
    assert client.exchange(line) == [refusal]
    assert LayeredClient(driven, tls=True).exchange(PUB) == [b"OK", b"OK"]


# ---- errors -----------------------------------------------------------------------------------------------------


def answers_after(client: LayeredClient, data: bytes, now_ns: int = START_NS) -> tuple[bytes, bytes]:
    """Hand over raw bytes; return the alert and the plain frames that follow."""
    client.feed(data)
    return split_alert(client.session.data_to_send())


def split_alert(data: bytes) -> tuple[bytes, bytes]:
    return (data[:7], data[15:]) if data[:1] == b"\x15" else (b"", data[8:])


def asking_for_tls(driven: DrivenBroker, **asked: object) -> LayeredClient:
    """Return a client that has been granted TLS, and has not begun with it."""
    client = LayeredClient.__new__(LayeredClient)
    client.session = driven.broker.open_session("10.0.0.1:1", driven.now_ns)
    client._driven, client._cut = driven, None
    document = {"feature_negotiation": True, "tls_v1": True, **asked}
    client.feed(MAGIC_V2 + encode_identify(json.dumps(document).encode()))
    assert b'"tls_v1":true' in client.session.data_to_send()
    assert not client.session.has_output, "the OK waits for the handshake"
    return client


@pytest.mark.parametrize("asked", [{}, {"snappy": True}, {"deflate": True}])
def test_client_that_continues_without_tls_gets_a_plain_error(driven, asked):
    client = asking_for_tls(driven, **asked)
    alert, refusal = answers_after(client, PUB)
    assert (alert, refusal) == (
        b"",
        b"E_IDENTIFY_FAILED IDENTIFY failed tls: first record does not look like a TLS handshake",
    )
    assert client.session.ended


def test_plain_command_in_the_buffer_of_identify_is_refused_without_tls(driven):
    session = driven.broker.open_session("10.0.0.1:1", driven.now_ns)
    session.receive_data(
        MAGIC_V2 + encode_identify(b'{"feature_negotiation": true, "tls_v1": true}') + PUB, driven.now_ns
    )
    assert session.ended
    data = session.data_to_send()
    assert data[4 + int.from_bytes(data[:4], "big") :][8:].startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")


def test_alert_precedes_the_refusal(driven):
    alert, refusal = answers_after(asking_for_tls(driven), b"\x16\x03\x01\x00\x05abcde")
    assert alert[:1] == b"\x15"
    assert refusal == b"E_IDENTIFY_FAILED IDENTIFY failed tls: unexpected message"


def test_eof_ends_the_tls_handshake(driven):
    client = asking_for_tls(driven)
    client.session.receive_eof(driven.now_ns)
    assert split_alert(client.session.data_to_send())[1] == b"E_IDENTIFY_FAILED IDENTIFY failed EOF"


@pytest.mark.parametrize("interval", [-1, 1000, 60000])
def test_tls_handshake_times_out_after_five_seconds(driven, interval):
    client = asking_for_tls(driven, heartbeat_interval=interval)
    driven.advance(HANDSHAKE_TIMEOUT_NS / NS_PER_S - 0.001)
    assert not client.session.ended
    driven.advance(0.001)
    assert client.session.ended
    _, refusal = split_alert(client.session.data_to_send())
    assert refusal == b"E_IDENTIFY_FAILED IDENTIFY failed read tcp 10.0.0.1:1: i/o timeout"


def test_heartbeat_timeout_begins_after_a_slow_handshake(driven):
    slow = asking_for_tls(driven, heartbeat_interval=1000)
    driven.advance(4.9)
    tls = TLS(client_context(), server_hostname=HOST)
    plain = b""
    while tls.has_output:
        slow.feed(tls.encode(b""))
        plain += b"".join(tls.decode(slow.session.data_to_send()))
    assert tls.is_ready
    assert plain.startswith(OK_FRAME)
    assert plain.count(b"_heartbeat_") == 4
    driven.advance(1)
    assert not slow.session.ended
    slow.feed(tls.encode(NOP))
    assert not slow.session.ended
    driven.advance(2)
    assert slow.session.ended


def test_damaged_record_ends_the_session_with_an_alert(driven):
    client = LayeredClient(driven, tls=True)
    client.exchange(PUB)
    client.feed(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert client.session.ended
    assert end_reason(client.session) == "tls: decryption failed or bad record mac"
    assert client.session.data_to_send()[:1] == b"\x17", "an alert of TLS 1.3 looks like any record"


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_uncompressed_bytes_end_the_session(driven, compression):
    client = LayeredClient(driven, compression=compression)
    client.read()
    client.feed(b"\xff\xff\xff\xffPUB t\n")
    assert client.session.ended
    assert (end_reason(client.session) or "").startswith(f"the stream is not {compression}: ")


@pytest.mark.parametrize("commands", [b"", PUB])
def test_client_that_closes_tls_has_disconnected(driven, commands):
    client = LayeredClient(driven, tls=True)
    client.read()
    tls = client._layers[0]
    assert isinstance(tls, TLS)
    client.feed((tls.encode(commands) if commands else b"") + tls.end())
    assert client.session.ended
    assert end_reason(client.session) is None
    assert client.read() == ([b"OK"] if commands else [])


def test_tls_of_an_unsupported_version_is_refused(driven):
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    rules = server_context()
    rules.minimum_version = ssl.TLSVersion.TLSv1_3
    driven.broker.offer_tls(partial(TLS, rules))
    alert, refusal = answers_after(asking_for_tls(driven), TLS(context, server_hostname=HOST).encode(b""))
    assert alert[:1] == b"\x15"
    assert refusal == b"E_IDENTIFY_FAILED IDENTIFY failed tls: unsupported protocol"
