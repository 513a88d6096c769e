from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from nsqkit.client.handshake import Handshake, HandshakeResult, Send, Upgrade, handshake
from nsqkit.errors import NegotiationFailed, ProtocolError
from nsqkit.transport.tls import TLS
from nsqkit.wire.auth import AuthAnswer
from nsqkit.wire.commands import MAGIC_V2, encode_auth, encode_identify
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.identify import IdentifyAnswer, IdentifyRequest, encode_request
from tests.certificates import HOST, client_context

ASKED: dict[str, Any] = {"feature_negotiation": True}


def asking(**asked: Any) -> IdentifyRequest:
    return IdentifyRequest(**{**ASKED, **asked})


def begun(identity: IdentifyRequest, **means: Any) -> Handshake:
    """Return a handshake after its first step."""
    steps = handshake(identity, **means)
    assert next(steps) == Send("IDENTIFY", MAGIC_V2 + encode_identify(encode_request(identity)))
    return steps


def granted(**answer: object) -> bytes:
    return json.dumps(answer).encode()


def end(steps: Handshake, payload: bytes) -> HandshakeResult:
    """Answer the last step."""
    with pytest.raises(StopIteration) as stopped:
        steps.send(payload)
    result = stopped.value.value
    assert isinstance(result, HandshakeResult)
    return result


def make_tls() -> TLS:
    return TLS(client_context(), server_hostname=HOST)


def upgrade(step: Send | Upgrade, layer: type) -> Upgrade:
    assert isinstance(step, Upgrade)
    assert isinstance(step.layer, layer)
    return step


def test_handshake_without_layers_ends_with_answer():
    assert end(begun(asking()), granted(max_rdy_count=7)) == HandshakeResult(IdentifyAnswer(max_rdy_count=7), None)


def test_old_broker_answers_ok():
    assert end(begun(asking()), b"OK") == HandshakeResult(IdentifyAnswer(), None)


def test_steps_are_in_nsqds_order():
    steps = begun(asking(tls_v1=True, snappy=True), make_tls=make_tls, auth_secret="hush \u00e9")
    upgrade(steps.send(granted(tls_v1=True, snappy=True, auth_required=True)), TLS)
    upgrade(steps.send(b"OK"), Snappy)
    assert steps.send(b"OK") == Send("AUTH", encode_auth("hush \u00e9".encode()))
    result = end(steps, b'{"identity":"me","identity_url":"","permission_count":2}')
    assert result.auth == AuthAnswer(identity="me", permission_count=2)
    assert (result.answer.tls_v1, result.answer.snappy, result.answer.auth_required) == (True, True, True)


@pytest.mark.parametrize("asked", [{"snappy": True}, {"deflate": True}])
def test_compression_can_be_refused(asked):
    assert end(begun(asking(**asked)), granted()).answer == IdentifyAnswer()


@pytest.mark.parametrize(("level", "used"), [(1, 1), (9, 9), (0, 6), (-1, 6)])
def test_granted_level_is_used(level, used):
    steps = begun(asking(deflate=True, deflate_level=5))
    step = upgrade(steps.send(granted(deflate=True, deflate_level=level)), Deflate)
    compressor = zlib.compressobj(used, zlib.DEFLATED, -zlib.MAX_WBITS)
    text = b"".join(b"%d " % (n * n) for n in range(2000))
    assert step.layer.encode(text) == compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
    assert end(steps, b"OK").answer.deflate


def test_secret_is_not_in_repr():
    steps = begun(asking(), auth_secret="hush")
    assert "hush" not in repr(steps.send(granted(auth_required=True)))


def test_secret_is_not_sent_unless_required():
    assert end(begun(asking(), auth_secret="hush"), granted(auth_required=False)).auth is None


def test_refused_tls_ends_handshake_before_auth():
    with pytest.raises(NegotiationFailed, match="tls_v1 is set, and the broker does not offer TLS"):
        begun(asking(tls_v1=True), make_tls=make_tls, auth_secret="hush").send(granted(auth_required=True))


def test_required_auth_without_secret_ends_handshake():
    with pytest.raises(NegotiationFailed, match="the broker requires AUTH, and auth_secret is not set"):
        begun(asking()).send(granted(auth_required=True))


@pytest.mark.parametrize("feature", ["tls_v1", "snappy", "deflate"])
def test_unrequested_feature_must_not_be_granted(feature):
    with pytest.raises(ProtocolError, match=f"the broker granted {feature}, which was not requested"):
        begun(asking()).send(granted(**{feature: True}))


def test_layer_starts_with_ok():
    steps = begun(asking(deflate=True))
    upgrade(steps.send(granted(deflate=True)), Deflate)
    with pytest.raises(ProtocolError, match="the broker began a layer with b'KO' instead of OK"):
        steps.send(b"KO")


@pytest.mark.parametrize("payload", [b"", b"no", b"[]", b'{"tls_v1": 1}'])
def test_invalid_answer_to_identify_is_refused(payload):
    with pytest.raises(ProtocolError, match="the answer to IDENTIFY cannot be understood"):
        begun(asking()).send(payload)


def test_invalid_answer_to_auth_is_refused():
    steps = begun(asking(), auth_secret="hush")
    steps.send(granted(auth_required=True))
    with pytest.raises(ProtocolError, match="the answer to AUTH cannot be understood: b'OK'"):
        steps.send(b"OK")
