"""What a client may do: no grant, no publishing; a grant that has expired is asked for again."""

from __future__ import annotations

import json

import pytest

from nsqkit.broker.core.session.auth import AuthState, decode_auth_state
from nsqkit.broker.core.session.authorization import Authorization
from nsqkit.broker.core.session.frame_buffer import Wait
from nsqkit.errors import AuthFailed, AuthFirst, InvalidCommand, NSQError, RequestFailed, Unauthorized

NOW_NS = 1_700_000_000 * 10**9


def granted(topic: str = "^t", *, ttl: int = 60, **fields: str) -> AuthState:
    entry = {"topic": topic, "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return decode_auth_state(json.dumps({"ttl": ttl, "authorizations": [entry], **fields}).encode(), NOW_NS)


def nothing() -> AuthState:
    return decode_auth_state(b'{"ttl":60,"authorizations":[]}', NOW_NS)


@pytest.fixture
def asked() -> list[bytes]:
    """The secrets for which the auth server was asked."""
    return []


@pytest.fixture
def access(asked: list[bytes]) -> Authorization:
    made = Authorization(lambda: asked.append(made.secret))
    return made


def authenticated(access: Authorization, state: AuthState | NSQError) -> bytes:
    with pytest.raises(Wait):
        access.authenticate(b"secret")
    access.answer(state)
    return access.authenticate(b"secret")


def test_auth_waits_for_the_auth_server_and_tells_what_it_said(access, asked):
    answer = authenticated(access, granted(identity="me", identity_url="http://me"))
    assert asked == [b"secret"]
    assert answer == b'{"identity":"me","identity_url":"http://me","permission_count":1}'
    access.check(b"PUB", b"topic", b"", NOW_NS)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (RequestFailed("down"), AuthFailed("AUTH failed")),
        (nothing(), Unauthorized("AUTH no authorizations found")),
    ],
)
def test_no_usable_answer_and_no_authorization_are_told_apart(access, state, error):
    with pytest.raises(type(error), match=str(error)):
        authenticated(access, state)
    with pytest.raises(AuthFirst, match="AUTH required before PUB"):
        access.check(b"PUB", b"topic", b"", NOW_NS)


def test_a_second_auth_is_refused_without_asking(access, asked):
    authenticated(access, granted())
    with pytest.raises(InvalidCommand, match="AUTH already set"):
        access.authenticate(b"other")
    assert asked == [b"secret"]


def test_before_auth_nothing_is_allowed(access):
    with pytest.raises(AuthFirst, match="AUTH required before SUB"):
        access.check(b"SUB", b"topic", b"c", NOW_NS)


def test_what_is_not_granted_is_refused_with_the_names(access):
    authenticated(access, granted("^other$"))
    with pytest.raises(Unauthorized, match='AUTH failed for SUB on "topic" "c"'):
        access.check(b"SUB", b"topic", b"c", NOW_NS)


def test_an_expired_grant_is_asked_for_again_and_the_new_one_counts(access, asked):
    authenticated(access, granted(ttl=1))
    late_ns = NOW_NS + 2 * 10**9
    assert access.is_expired(late_ns)
    with pytest.raises(Wait):
        access.check(b"PUB", b"topic", b"", late_ns)
    access.answer(granted("^other$", ttl=1000))
    with pytest.raises(Unauthorized):
        access.check(b"PUB", b"topic", b"", late_ns)
    access.check(b"PUB", b"other", b"", late_ns)
    assert asked == [b"secret"] * 2


def test_an_expired_grant_that_cannot_be_had_again_is_a_failure(access):
    authenticated(access, granted(ttl=1))
    with pytest.raises(Wait):
        access.check(b"PUB", b"topic", b"", NOW_NS + 2 * 10**9)
    failure = RequestFailed("the auth server is down")
    access.answer(failure)
    with pytest.raises(AuthFailed, match=r"AUTH failed$") as caught:
        access.check(b"PUB", b"topic", b"", NOW_NS + 2 * 10**9)
    assert caught.value.__cause__ is failure  # for the log
