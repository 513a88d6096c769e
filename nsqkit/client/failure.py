"""The texts of errors in making a connection.

``explain`` describes a peer that is no nsqd by its first bytes, ``advice`` says what a user can change, and
``not_connected`` is the error for callers that waited for a connection. Whether an error is permanent is a property of
its class (``nsqkit.errors``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nsqkit.errors import (
    AuthError,
    AuthFailed,
    AuthFirst,
    BadBody,
    BadChannel,
    BadTopic,
    IdentifyFailed,
    InvalidCommand,
    NegotiationFailed,
    NotConnected,
    NSQError,
    ProtocolError,
    RequestRefused,
    Unauthorized,
    WrongServer,
)

BEGINNING_LENGTH: Final = 24
"""The first bytes of a peer's data that are kept to describe it."""

_USE_TCP_PORT: Final = "give the TCP port of nsqd, by default 4150"

_STRANGERS: Final = (
    (b"HTTP/", f"it speaks HTTP, as port 4151 of nsqd and 4161 of nsqlookupd do; {_USE_TCP_PORT}"),
    (
        b"\x15\x03",
        "it speaks TLS from the first byte, as HTTPS does; nsqd begins without TLS and goes on in it if tls_v1 is set; "
        + _USE_TCP_PORT,
    ),
    (b"\0\0\0\x0eE_BAD_PROTOCOL", f"it is an nsqlookupd, on its TCP port, by default 4160; {_USE_TCP_PORT}"),
)
"""The first bytes of other servers' answers, with their meaning."""

_ADVICE: Final[tuple[tuple[tuple[type[NSQError], ...], str], ...]] = (
    ((BadBody, IdentifyFailed), "change the option that the broker names, or the broker's limit"),
    (
        (AuthFailed, AuthError, AuthFirst, Unauthorized),
        "check auth_secret, and what the auth server grants to it",
    ),
    ((BadTopic, BadChannel), "check the names of the topic and the channel"),
    ((InvalidCommand,), "check which options the broker requires: if it says so, set tls_v1"),
    ((NegotiationFailed,), "change the options of TLS, compression or AUTH, here or at the broker"),
    ((ProtocolError,), "check host and port"),
    ((RequestRefused,), "check the address of nsqlookupd, by default port 4161, and lookupd_authorization"),
    ((WrongServer,), "check the address of nsqlookupd, whether it is http or https, and its certificate"),
)


def explain(beginning: bytes, error: ProtocolError) -> ProtocolError:
    """Return the error for a peer whose answer to IDENTIFY, with this beginning, cannot be decoded."""
    for prefix, meaning in _STRANGERS:
        if beginning.startswith(prefix):
            return ProtocolError(f"the peer is no nsqd: {meaning}")
    return ProtocolError(f"the peer does not answer as nsqd does, it begins with {beginning!r}: {error}")


def advice(error: NSQError) -> str:
    """Return what a user can change to correct a permanent error."""
    return next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "check the options")


def not_connected(text: str, errors: Mapping[str, Exception | None]) -> NotConnected:
    """Return the error for a caller that waited for a connection, from the last error of each, by address."""
    causes = [
        str(error) if address in str(error) else f"{address}: {error}"
        for address, error in errors.items()
        if error is not None
    ]
    raised = NotConnected(": ".join([text, "; ".join(causes)]) if causes else text)
    raised.__cause__ = next((error for error in errors.values() if error is not None), None)
    return raised
