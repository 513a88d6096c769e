"""Fixtures of the integration tests: both transports to a broker, and a record of the commands that brokers execute."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import pytest

from nsqkit.broker.core.session.session import ACTIONS, Session
from nsqkit.wire.commands import Command
from tests.integration.stage import Stage

Received: TypeAlias = list[tuple[Session, bytes, list[bytes]]]


@pytest.fixture(params=["tcp", "memory"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(request.param)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Received:
    """The commands that brokers have executed: session, verb and params."""
    commands: Received = []

    def act(carry_out, session: Session, command: Command) -> None:
        carry_out(session, command)
        commands.append((session, command.verb, command.params))

    for verb, action in list(ACTIONS.items()):
        monkeypatch.setitem(ACTIONS, verb, partial(act, action))
    return commands
