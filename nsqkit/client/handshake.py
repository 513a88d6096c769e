"""The greeting of a connection: all that is said before it is of use, from the magic to AUTH.

    IDENTIFY ─▶ answer ─▶ TLS ─▶ OK ─▶ snappy or deflate ─▶ OK ─▶ AUTH ─▶ answer
                          ╰─ if asked for and granted ─╯          ╰ if required ╯

The rule it guards: what was asked for the sake of safety is had, or the connection is not. A broker that was asked for
TLS and does not grant it is left, with nothing said that should not be overheard; the secret goes only to a broker that
requires AUTH. Compression is a matter of cost, and done without where it is not granted.

How to read it: ``greet`` is a script, a generator: it yields what to do next, and is sent the answer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

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
class Say:
    """Send bytes.

    Attributes:
        data: a command; in no repr, for one of them has the secret.
        asks_elsewhere: the broker has to ask somebody else for its answer, which may take longer than its own would.
    """

    data: bytes = attrs.field(repr=False)
    asks_elsewhere: bool = False


@attrs.frozen
class Upgrade:
    """Have all that follows, in both directions, go through a layer, above those that there are.

    Attributes:
        layer: the layer.
    """

    layer: Transform


@attrs.frozen
class Greeted:
    """What the greeting has led to.

    Attributes:
        answer: to IDENTIFY.
        auth: the answer to AUTH; None if it was not required.
    """

    answer: IdentifyAnswer
    auth: AuthAnswer | None


Handshake: TypeAlias = "Generator[Say | Upgrade, bytes, Greeted]"
"""Yields steps, each of which has one response, and is sent the response's payload."""


def handshake(
    identity: IdentifyRequest,
    *,
    make_tls: Callable[[], SecureTransform] | None = None,
    auth_secret: str = "",
) -> Handshake:
    """Return the script of one greeting.

    Args:
        identity: what is told and asked in IDENTIFY.
        make_tls: makes the layer of TLS; needed where ``identity`` asks for TLS.
        auth_secret: what AUTH says if the broker requires it.

    Raises:
        ProtocolError: a response makes no sense.
        NegotiationFailed: the two ends do not agree.
    """
    answer = decode_response((yield Say(MAGIC_V2 + encode_identify(encode_request(identity)))))
    _check_grant(identity, answer)
    if answer.tls_v1:
        assert make_tls is not None
        _check_ok((yield Upgrade(make_tls())))
    if answer.snappy:
        _check_ok((yield Upgrade(Snappy())))
    if answer.deflate:
        _check_ok((yield Upgrade(Deflate(_level(answer)))))
    if not answer.auth_required:
        return Greeted(answer, None)
    if not auth_secret:
        raise NegotiationFailed("the broker requires AUTH, and auth_secret is not set")
    return Greeted(answer, decode_answer((yield Say(encode_auth(auth_secret.encode()), asks_elsewhere=True))))


def _check_grant(identity: IdentifyRequest, answer: IdentifyAnswer) -> None:
    if identity.tls_v1 and not answer.tls_v1:
        raise NegotiationFailed("tls_v1 is set, and the broker does not offer TLS")
    for feature in ("tls_v1", "snappy", "deflate"):
        if getattr(answer, feature) and not getattr(identity, feature):
            raise ProtocolError(f"the broker granted {feature}, which was not asked for")


def _check_ok(payload: bytes) -> None:
    if payload != OK:
        raise ProtocolError(f"the broker began a layer with {payload[:100]!r} instead of OK")


def _level(answer: IdentifyAnswer) -> int:
    """Return what the broker compresses with, for the other direction."""
    return answer.deflate_level if answer.deflate_level in _DEFLATE_LEVELS else 6
