"""What a client says of connections that cannot be made.

The rule it guards: a user reads what is wrong, what the peer seems to be, and what to change. Whether an error is
permanent is a property of its class (``nsqkit.errors``); what can be done about it is said here, in one table.

How to read it: ``explain`` turns the bytes of a peer that is no nsqd into an error, ``advice`` names what to change,
and ``not_connected`` is what those get who have waited for a connection.
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
"""Bytes of a peer that tell what it is."""

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
"""How the answers of other servers begin, and what that means."""

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
    """Return the error of a peer whose first answer cannot be understood.

    Args:
        beginning: the first bytes that it sent.
        error: what is wrong with them.
    """
    for prefix, meaning in _STRANGERS:
        if beginning.startswith(prefix):
            return ProtocolError(f"the peer is no nsqd: {meaning}")
    return ProtocolError(f"the peer does not answer as nsqd does, it begins with {beginning!r}: {error}")


def advice(error: NSQError) -> str:
    """Return what a user can do about a permanent error."""
    return next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "check the options")


def not_connected(text: str, errors: Mapping[str, Exception | None]) -> NotConnected:
    """Return the error of a caller that has waited for a connection and got none.

    Args:
        text: what was waited for.
        errors: the last error of each connection, by its address.
    """
    causes = [
        str(error) if address in str(error) else f"{address}: {error}"
        for address, error in errors.items()
        if error is not None
    ]
    raised = NotConnected(": ".join([text, "; ".join(causes)]) if causes else text)
    raised.__cause__ = next((error for error in errors.values() if error is not None), None)
    return raised
