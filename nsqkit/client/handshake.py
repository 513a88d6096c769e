"""The handshake of a client: everything from the magic to the answer to AUTH.

    IDENTIFY ─▶ answer ─▶ TLS ─▶ OK ─▶ snappy or deflate ─▶ OK ─▶ AUTH ─▶ answer
                          ╰─ if requested and granted ─╯          ╰ if required ╯

A connection without a safety measure that was requested is not used: if the broker does not grant TLS, the handshake
fails before anything confidential is sent, and the secret is sent only to a broker that requires AUTH. Compression
only saves cost, so a connection without it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import attrs

from nsqkit.errors import NegotiationFailed, ProtocolError
from nsqkit.wire.auth import AuthAnswer, decode_answer
from nsqkit.wire.commands import MAGIC_V2, encode_auth, encode_identify
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.frames import OK
from nsqkit.wire.identify import IdentifyAnswer, IdentifyRequest, decode_response, encode_request

if TYPE_CHECKING:
    from nsqkit.wire.transform import SecureTransform, Transform

_DEFLATE_LEVELS = range(1, 10)


@attrs.frozen
class Send:
    """A step: send a command."""

    event: str
    data: bytes = attrs.field(repr=False)  # AUTH contains the secret


@attrs.frozen
class Upgrade:
    """A step: put a layer above the existing ones, for all that follows in both directions."""

    event: ClassVar = "upgrade"
    layer: Transform


@attrs.frozen
class HandshakeResult:
    """The answers to IDENTIFY and to AUTH; ``auth`` is None if the broker does not require AUTH."""

    answer: IdentifyAnswer
    auth: AuthAnswer | None


Handshake: TypeAlias = "Generator[Send | Upgrade, bytes, HandshakeResult]"
"""Yields steps, each of which has one response, and is sent the response's payload."""


def handshake(
    identity: IdentifyRequest, *, make_tls: Callable[[], SecureTransform] | None = None, auth_secret: str = ""
) -> Handshake:
    """Yield the steps of one handshake; ``make_tls`` is needed if ``identity`` requests TLS.

    Raises:
        ProtocolError: a response cannot be decoded.
        NegotiationFailed: the two ends do not agree.
    """
    answer = decode_response((yield Send("IDENTIFY", MAGIC_V2 + encode_identify(encode_request(identity)))))
    _check_grant(identity, answer)
    if answer.tls_v1:
        assert make_tls is not None
        _check_ok((yield Upgrade(make_tls())))
    if answer.snappy:
        _check_ok((yield Upgrade(Snappy())))
    if answer.deflate:
        # The level is that of the broker; this end compresses with the same.
        level = answer.deflate_level if answer.deflate_level in _DEFLATE_LEVELS else 6
        _check_ok((yield Upgrade(Deflate(level))))
    if not answer.auth_required:
        return HandshakeResult(answer, None)
    if not auth_secret:
        raise NegotiationFailed("the broker requires AUTH, and auth_secret is not set")
    return HandshakeResult(answer, decode_answer((yield Send("AUTH", encode_auth(auth_secret.encode())))))


def _check_grant(identity: IdentifyRequest, answer: IdentifyAnswer) -> None:
    if identity.tls_v1 and not answer.tls_v1:
        raise NegotiationFailed("tls_v1 is set, and the broker does not offer TLS")
    for feature in ("tls_v1", "snappy", "deflate"):
        if getattr(answer, feature) and not getattr(identity, feature):
            raise ProtocolError(f"the broker granted {feature}, which was not requested")


def _check_ok(payload: bytes) -> None:
    if payload != OK:
        raise ProtocolError(f"the broker began a layer with {payload[:100]!r} instead of OK")
