"""The things that sessions share, and their events."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.session.command_rules import CommandRules
from nsqkit.broker.core.session.frame_buffer import FrameBuffer
from nsqkit.broker.core.session.nsqd_frame_buffer import NsqdFrameBuffer
from nsqkit.broker.core.session.sessions import AuthorizationRequested, SessionEnded
from nsqkit.errors import RequestFailed
from nsqkit.wire.commands import encode_auth
from tests.pairs import DrivenBroker


@pytest.mark.parametrize(("timing", "kind"), [("exact", FrameBuffer), ("nsqd", NsqdFrameBuffer)])
def test_buffer_follows_the_timing(timing, kind):
    sessions = DrivenBroker(timing=timing).broker.sessions
    assert type(sessions.make_buffer(CommandRules(max_req_timeout_ns=0, lacks_tls=False))) is kind


def test_sessions_are_in_the_order_in_which_they_were_opened():
    driven = DrivenBroker()
    clients = [driven.client() for _ in range(3)]
    clients[0].disconnect()
    assert list(driven.broker.sessions) == [client.session for client in clients[1:]]


def test_authorization_is_requested_by_an_event():
    client = DrivenBroker(auth_http_addresses=["127.0.0.1:1"]).client()
    client.feed(encode_auth(b"secret"))
    assert client.session.has_events
    assert client.session.events() == (AuthorizationRequested(b"secret"),)
    assert client.session.events() == ()


def test_secret_is_not_in_the_text_of_an_event():
    assert "secret" not in repr(AuthorizationRequested(b"secret")).replace("secret=", "")


def test_authorization_is_requested_once_though_a_commit_ends_meanwhile():
    client = DrivenBroker(auth_http_addresses=["127.0.0.1:1"]).client()
    client.feed(encode_auth(b"secret"))
    client.session.events()
    client.session.release(1)
    assert not client.session.has_input
    client.session.authorize(RequestFailed("down"))
    assert client.session.has_input


def test_end_is_an_event():
    client = DrivenBroker().client()
    client.session.end("for a reason")
    client.session.end("for another")
    assert client.session.events() == (SessionEnded("for a reason"),)
