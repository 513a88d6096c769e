from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core import auth
from nsqkit.broker.core.auth import AuthState, decode_auth_state
from nsqkit.errors import ProtocolError
from tests import strategies

NOW_NS = 1_700_000_000_000_000_000
S = 10**9


def entry(topic=".*", channels=(".*",), permissions=("subscribe", "publish")):
    return {"topic": topic, "channels": [*channels], "permissions": [*permissions]}


def decode(*entries, **fields) -> AuthState:
    return decode_auth_state(json.dumps({"ttl": 60, "authorizations": entries} | fields).encode(), NOW_NS)


def test_what_a_client_is_told_and_when_to_ask_again():
    state = decode(entry(), entry(), identity="me", identity_url="http://me")
    assert (state.identity, state.identity_url, state.permission_count) == ("me", "http://me", 2)
    assert state.expires_ns == NOW_NS + 60 * S
    assert not state.is_expired(NOW_NS + 60 * S)
    assert state.is_expired(NOW_NS + 60 * S + 1)


@pytest.mark.parametrize(
    ("entries", "topic", "channel", "allowed"),
    [
        ([], b"t", b"c", False),
        ([entry()], b"t", b"c", True),
        ([entry()], b"t", b"", True),
        ([entry(permissions=["subscribe"])], b"t", b"c", True),
        ([entry(permissions=["subscribe"])], b"t", b"", False),
        ([entry(permissions=["publish"])], b"t", b"c", False),
        ([entry(permissions=["publish"])], b"t", b"", True),
        ([entry(permissions=[])], b"t", b"", False),
        ([entry(topic="ood")], b"a.good.one", b"c", True),
        ([entry(topic="^ood")], b"a.good.one", b"c", False),
        ([entry(channels=["^c[0-9]$"])], b"t", b"c1", True),
        ([entry(channels=["^c[0-9]$"])], b"t", b"other", False),
        ([entry(channels=["^c[0-9]$"])], b"t", b"", False),
        ([entry(channels=["x", "c?"])], b"t", b"", True),
        ([entry(channels=[])], b"t", b"", False),
        ([entry(channels=[])], b"t", b"c", False),
        ([entry(topic="")], b"t", b"c", True),
        # One entry has to allow all of it.
        ([entry(topic="^a$", permissions=["publish"]), entry(topic="^b$")], b"a", b"c", False),
        ([entry(topic="^a$", permissions=["publish"]), entry(topic="^b$")], b"b", b"c", True),
    ],
)
def test_what_is_allowed(entries, topic, channel, allowed):
    state = decode(*entries)
    assert state.is_allowed(topic, channel) is allowed
    assert state.is_allowed(topic, channel) is allowed


def test_answers_are_kept_up_to_a_number(monkeypatch):
    monkeypatch.setattr(auth, "ANSWERS_KEPT_MAX", 3)
    state = decode(entry(topic="[02468]$"))
    for _ in range(2):
        assert [state.is_allowed(b"%d" % n, b"c") for n in range(6)] == [True, False] * 3
    assert len(state._answers) <= 3
    assert state == decode(entry(topic="[02468]$"))


@pytest.mark.parametrize(
    "body",
    [
        b'{"ttl":60}',
        b'{"TTL":60,"Identity":null,"identity_url":null,"authorizations":null,"more":[1.5]}',
        b'{"ttl":1,"ttl":60,"authorizations":[]}',
    ],
)
def test_what_may_be_missing(body):
    assert decode_auth_state(body, NOW_NS) == AuthState(
        identity="", identity_url="", authorizations=(), expires_ns=NOW_NS + 60 * S
    )


def test_what_may_be_missing_of_an_authorization():
    body = (
        b'{"ttl":60,"authorizations":[null,{},{"topic":null,"channels":null,"permissions":null},'
        b'{"Topic":"t","CHANNELS":["c",null],"permissions":["publish"],"x":1}]}'
    )
    state = decode_auth_state(body, NOW_NS)
    assert state.permission_count == 4
    assert state.is_allowed(b"t", b"")
    assert not state.is_allowed(b"t", b"c")


@pytest.mark.parametrize("ttl", [0, -1, None])
def test_a_time_to_live_that_is_none(ttl):
    with pytest.raises(ProtocolError, match=rf"invalid TTL {ttl or 0} \(must be >0\)$"):
        decode(entry(), ttl=ttl)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"ttl": "60"}, "ttl is '60'"),
        ({"ttl": 60.0}, r"ttl is 60\.0"),
        ({"ttl": True}, "ttl is True"),
        ({"ttl": 1 << 63}, "ttl is 9223372036854775808"),
        ({"identity": 5}, "identity is 5"),
        ({"identity_url": []}, r"identity_url is \[\]"),
        ({"authorizations": {}}, r"authorizations is \(\)"),
        ({"authorizations": "x"}, "authorizations is 'x'"),
        ({"authorizations": ["x"]}, "'x' is no authorization"),
        ({"authorizations": [[]]}, r"\[\] is no authorization"),
        ({"authorizations": [{"topic": 5}]}, "topic is 5"),
        ({"authorizations": [{"channels": "c"}]}, "channels is 'c'"),
        ({"authorizations": [{"Permissions": {}}]}, r"permissions is \(\)"),
        ({"authorizations": [{"channels": [5]}]}, "5 stands among the channels"),
        ({"authorizations": [{"permissions": [5]}]}, "5 stands among the permissions"),
        (
            {"authorizations": [entry(permissions=["admin"])]},
            "unknown permission 'admin'; known are subscribe and",
        ),
        ({"authorizations": [entry(permissions=["Publish"])]}, "unknown permission 'Publish'"),
        ({"authorizations": [{"permissions": [None]}]}, "unknown permission ''"),
        (
            {"authorizations": [entry(), entry(topic="(")]},
            r"unable to compile topic '\(': missing closing \)",
        ),
        (
            {"authorizations": [entry(channels=["a", "(?=b)"])]},
            r"unable to compile channel '\(\?=b\)': invalid or",
        ),
    ],
)
def test_an_answer_that_is_refused(fields, error):
    with pytest.raises(ProtocolError, match=f"^the auth server's answer cannot be used: .*{error}"):
        decode(**fields)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nope",
        b"[]",
        b'"ttl"',
        b'{"ttl":60}x',
        b'{"ttl":NaN}',
        b"null",
        b"[" * 100_000,
        b"\xef\xbb\xbf{}",
    ],
)
def test_an_answer_that_is_no_document(body):
    with pytest.raises(ProtocolError, match=r"^the auth server's answer cannot be used: "):
        decode_auth_state(body, NOW_NS)


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_understood(data):
    # A document with garbage in the place of a value.
    try:
        assert decode_auth_state(
            b'{"ttl":60,"authorizations":[{"topic":' + data + b"}]}", NOW_NS
        ).permission_count
    except ProtocolError:
        pass


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["topic", "channels", "permissions", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["ttl", "TTL", "identity", "authorizations", "x"]), VALUES))
def test_any_document_is_refused_or_understood(document):
    try:
        state = decode_auth_state(json.dumps(document).encode(), NOW_NS)
    except ProtocolError:
        return
    assert state.expires_ns > NOW_NS
    assert state.is_allowed(b"t", b"") in (True, False)


LITERALS = st.lists(
    st.builds(
        entry,
        topic=st.sampled_from(["^a$", "^b$", ".*"]),
        channels=st.lists(st.sampled_from(["^$", "^c$", "d", ".*"]), max_size=2),
        permissions=st.lists(st.sampled_from(["subscribe", "publish"]), max_size=2),
    ),
    max_size=4,
)


@given(
    LITERALS, st.sampled_from([b"a", b"b", b"x"]) | strategies.names(), st.sampled_from([b"", b"c", b"d1"])
)
def test_a_grant_is_what_its_entries_say(entries, topic, channel):
    expected = any(
        ("subscribe" if channel else "publish") in e["permissions"]
        and re.search(e["topic"], topic.decode())
        and any(re.search(pattern, channel.decode()) for pattern in e["channels"])
        for e in entries
    )
    assert decode(*entries).is_allowed(topic, channel) is expected
