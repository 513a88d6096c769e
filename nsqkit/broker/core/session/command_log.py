"""A line in the log for each command of a client, as nsqd writes it at the level ``debug``.

    DEBUG: PROTOCOL(V2): [127.0.0.1:53124] [PUB orders]

Without this level a command costs nothing more, since the lines are written by another table of actions (see
``session.LOGGED_ACTIONS``). A command that is refused for its words has no separate line; the line with the refusal
names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqkit.broker.core.session.command_rules import text
from nsqkit.errors import BrokerError

if TYPE_CHECKING:
    from nsqkit.wire.commands import Command

logger = logging.getLogger("nsqkit.broker")


class Client(Protocol):
    """The client that a line names."""

    remote_address: str


C = TypeVar("C", bound=Client)


def logged(action: Callable[[C, Command], int | None]) -> Callable[[C, Command], int | None]:
    """Return an action that also writes the line of its command."""

    def act(client: C, command: Command) -> int | None:
        try:
            words = action(client, command)
        except BrokerError:
            _log(client, command)
            raise
        _log(client, command)  # not if the command has to wait, since the action is called again then
        return words

    return act


def _log(client: Client, command: Command) -> None:
    for line in _lines(command):
        logger.debug("PROTOCOL(V2): [%s] [%s]", client.remote_address, text(line))


def _lines(command: Command) -> Iterator[bytes]:
    """Yield the lines of the client: a run of FINs, and a run of PUBs with the same words, is one ``Command``."""
    if command.verb == b"FIN":
        return (b"FIN " + message_id for message_id in command.params)
    count = len(command.bodies) if command.verb in (b"PUB", b"DPUB") else 1
    return iter([b" ".join((command.verb, *command.params))] * count)
