from __future__ import annotations

import pytest

from nsqkit import errors
from nsqkit.client.failure import advice, explain, not_connected
from nsqkit.errors import AuthFailed, NotConnected, NSQError, ProtocolError, RequestRefused

BROKEN = ProtocolError("frame size 1 is out of range")


@pytest.mark.parametrize(
    ("beginning", "words"),
    [
        (b"HTTP/1.1 400 Bad Request", "it speaks HTTP, as port 4151 of nsqd and 4161 of nsqlookupd do"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS from the first byte, as HTTPS does"),
        (b"\0\0\0\x0eE_BAD_PROTOCOL", "it is an nsqlookupd, on its TCP port, by default 4160"),
    ],
)
def test_known_server_is_named(beginning: bytes, words: str) -> None:
    error = explain(beginning, BROKEN)
    assert str(error).startswith(f"the peer is no nsqd: {words}")
    assert str(error).endswith("give the TCP port of nsqd, by default 4150")
    assert error.permanent


def test_unknown_server_is_quoted() -> None:
    error = explain(b"220 mail", BROKEN)
    assert str(error) == (
        "the peer does not answer as nsqd does, it begins with b'220 mail': frame size 1 is out of range"
    )


PERMANENT = {
    *(
        "AuthDisabled",
        "AuthError",
        "AuthFailed",
        "AuthFirst",
        "BadBody",
        "BadChannel",
        "BadProtocol",
        "BadTopic",
    ),
    *(
        "IdentifyFailed",
        "InvalidCommand",
        "NegotiationFailed",
        "ProtocolError",
        "Unauthorized",
        "WrongServer",
    ),
}


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "RequestRefused"])
def test_permanent_errors(name: str) -> None:
    assert getattr(errors, name)().permanent == (name in PERMANENT)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 425, 429, 500, 503])
def test_permanent_http_errors(status: int) -> None:
    assert RequestRefused("x", status, "no").permanent == (status in {400, 401, 403, 404})


@pytest.mark.parametrize("error", [getattr(errors, name)() for name in sorted(PERMANENT)])
def test_every_permanent_error_has_advice(error: NSQError) -> None:
    assert len(advice(error)) > 10


def test_advice_for_errors() -> None:
    assert advice(AuthFailed()) == "check auth_secret, and what the auth server grants to it"


def test_not_connected_has_cause_of_each_address() -> None:
    refused = NotConnected("cannot connect to a:1: Connection refused")
    error = not_connected("no connection", {"a:1": refused, "b:1": None, "c:1": AuthFailed("AUTH failed")})
    assert str(error) == ("no connection: cannot connect to a:1: Connection refused; c:1: E_AUTH_FAILED AUTH failed")
    assert error.__cause__ is refused


def test_not_connected_without_cause() -> None:
    error = not_connected("no connection", {"a:1": None})
    assert str(error) == "no connection"
    assert error.__cause__ is None
