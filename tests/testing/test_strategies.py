from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from nsqkit.testing import strategies
from nsqkit.testing.servers import NsqdServer
from nsqkit.wire.names import is_ephemeral, is_valid_name


@given(strategies.names(), strategies.names(ephemeral=True), strategies.names(ephemeral=False))
def test_names_are_valid(any_name: str, ephemeral: str, plain: str) -> None:
    assert all(is_valid_name(name.encode()) for name in (any_name, ephemeral, plain))
    assert is_ephemeral(ephemeral.encode())
    assert not is_ephemeral(plain.encode())


@given(strategies.bodies(20))
def test_bodies_have_the_lengths(body: bytes) -> None:
    assert 1 <= len(body) <= 20


@pytest.fixture(scope="module")
def server() -> Any:
    with NsqdServer() as server:
        yield server


@given(message=strategies.messages(), message_id=strategies.message_ids())
def test_messages_can_be_injected(server: NsqdServer, message: dict[str, Any], message_id: str) -> None:
    server.reset()
    server.inject("t", channel="c", id=message_id, **message)
    (state,) = server.messages("t", "c")
    assert (state.body, state.id) == (message["body"], message_id.encode())
    assert state.attempts == message.get("attempts", 1)
