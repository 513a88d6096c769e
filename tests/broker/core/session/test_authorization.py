"""The grant of a client: nothing is allowed without one, and one that has expired is requested again."""

from __future__ import annotations

import json

import pytest

from nsqkit.broker.core.session.auth import AuthState, decode_auth_state
from nsqkit.broker.core.session.authorization import Authorization
from nsqkit.errors import AuthFailed, AuthFirst, InvalidCommand, NSQError, RequestFailed, Unauthorized

NOW_NS = 1_700_000_000 * 10**9


def granted(topic: str = "^t", *, ttl: int = 60, **fields: str) -> AuthState:
    entry = {"topic": topic, "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return decode_auth_state(json.dumps({"ttl": ttl, "authorizations": [entry], **fields}).encode(), NOW_NS)


def nothing() -> AuthState:
    return decode_auth_state(b'{"ttl":60,"authorizations":[]}', NOW_NS)


@pytest.fixture
def authorization() -> Authorization:
    return Authorization()


def authenticated(authorization: Authorization, state: AuthState | NSQError) -> bytes | None:
    assert authorization.authenticate(b"secret") is None
    assert authorization.secret == b"secret"
    authorization.answer(state)
    return authorization.authenticate(b"secret")


def test_auth_needs_an_answer_of_the_auth_server_and_returns_its_content(authorization):
    answer = authenticated(authorization, granted(identity="me", identity_url="http://me"))
    assert answer == b'{"identity":"me","identity_url":"http://me","permission_count":1}'
    assert authorization.check(b"PUB", b"topic", b"", NOW_NS)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (RequestFailed("down"), AuthFailed("AUTH failed")),
        (nothing(), Unauthorized("AUTH no authorizations found")),
    ],
)
def test_no_usable_answer_and_no_authorization_are_different_errors(authorization, state, error):
    with pytest.raises(type(error), match=str(error)):
        authenticated(authorization, state)
    with pytest.raises(AuthFirst, match="AUTH required before PUB"):
        authorization.check(b"PUB", b"topic", b"", NOW_NS)


def test_second_auth_is_refused_without_a_request(authorization):
    authenticated(authorization, granted())
    with pytest.raises(InvalidCommand, match="AUTH already set"):
        authorization.authenticate(b"other")


def test_nothing_is_allowed_before_auth(authorization):
    with pytest.raises(AuthFirst, match="AUTH required before SUB"):
        authorization.check(b"SUB", b"topic", b"c", NOW_NS)


def test_topic_without_a_grant_is_refused_with_its_name(authorization):
    authenticated(authorization, granted("^other$"))
    with pytest.raises(Unauthorized, match='AUTH failed for SUB on "topic" "c"'):
        authorization.check(b"SUB", b"topic", b"c", NOW_NS)


def test_expired_grant_is_replaced_by_a_new_one(authorization):
    authenticated(authorization, granted(ttl=1))
    late_ns = NOW_NS + 2 * 10**9
    assert authorization.is_expired(late_ns)
    assert not authorization.check(b"PUB", b"topic", b"", late_ns)
    authorization.answer(granted("^other$", ttl=1000))
    with pytest.raises(Unauthorized):
        authorization.check(b"PUB", b"topic", b"", late_ns)
    assert authorization.check(b"PUB", b"other", b"", late_ns)


def test_expired_grant_that_cannot_be_renewed_is_a_failure(authorization):
    authenticated(authorization, granted(ttl=1))
    assert not authorization.check(b"PUB", b"topic", b"", NOW_NS + 2 * 10**9)
    failure = RequestFailed("the auth server is down")
    authorization.answer(failure)
    with pytest.raises(AuthFailed, match=r"AUTH failed$") as caught:
        authorization.check(b"PUB", b"topic", b"", NOW_NS + 2 * 10**9)
    assert caught.value.__cause__ is failure  # for the log
