"""A line in the log for each command of a client, as nsqd writes it at the level ``debug``.

    DEBUG: PROTOCOL(V2): [127.0.0.1:53124] [PUB orders]

The rule it guards: without this level a command costs nothing more. So the lines are written by another table of
actions, of which ``Broker.log_commands`` chooses one. A command that is refused for its words has no line of its own;
the line with the refusal names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.session.command_rules import text
from nsqkit.broker.core.session.session import ACTIONS
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import MPUB_HEAD

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.wire.commands import Command

logger = logging.getLogger("nsqkit.broker")


def _logged(action: Callable[[Session, Command], None]) -> Callable[[Session, Command], None]:
    def act(session: Session, command: Command) -> None:
        try:
            action(session, command)
        except BrokerError:
            _log(session, command)
            raise
        _log(session, command)  # not where the command has to wait, since the action is called again then

    return act


def _log(session: Session, command: Command) -> None:
    for line in _lines(command):
        logger.debug("PROTOCOL(V2): [%s] [%s]", session.remote_address, text(line))


def _lines(command: Command) -> Iterator[bytes]:
    """Yield the lines that came: a row of FINs, and a row of PUBs with the same words, is one ``Command``."""
    if command.verb == b"FIN":
        return (b"FIN " + message_id for message_id in command.params)
    count = len(command.bodies) if command.verb in (b"PUB", b"DPUB") else 1
    return iter([b" ".join((command.verb, *command.params))] * count)


LOGGED_ACTIONS: Final = {
    verb: action if verb == MPUB_HEAD else _logged(action) for verb, action in ACTIONS.items()
}
