"""Confirmed FIN and TOUCH: which of them nsqd has accepted.

        messages ─▶ in each session: FINs or TOUCHes, a barrier ─▶ (answers, or the session's end) ─▶ Confirmation

A message that is not held when it is to be finished counts as failed, and nothing is sent for it: it was answered, has
timed out, or its connection was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from nsqkit.consumer.message import Message
from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.consumer.message import Barrier, Holder
    from nsqkit.errors import BrokerError


@attrs.frozen
class Confirmation:
    """The messages that nsqd has not, or perhaps not, finished or touched; it has accepted all others.

    Attributes:
        failed: nsqd refused the command, or it was not sent because the message was answered before, had timed out or
            had lost its connection. nsqd delivers the message again unless it was answered.
        unknown: the connection ended after the command was sent and before nsqd confirmed it.
    """

    failed: tuple[Message, ...] = ()
    unknown: tuple[Message, ...] = ()


@attrs.frozen(eq=False)
class Confirming:
    """Commands whose outcome is not known yet.

    Attributes:
        not_sent: messages without a command.
        sent: for each session its barrier, and the messages of the commands before it.
        refusal: nsqd's error for one of the commands. Another command for the message may be refused before this one:
            a TOUCH comes too late, nsqd delivers the message again, and a FIN that is under way finishes it.
    """

    not_sent: tuple[Message, ...]
    sent: tuple[tuple[Barrier, list[Message]], ...]
    refusal: type[BrokerError]

    @property
    def is_done(self) -> bool:
        """True once the outcome of all commands is known, or will never be."""
        return all(barrier.is_passed for barrier, _ in self.sent)

    def result(self) -> Confirmation:
        """Return the outcome."""
        failed, unknown = [*self.not_sent], []
        for barrier, messages in self.sent:
            if barrier.refused is None:
                unknown += messages
            elif barrier.refused:
                failed += [message for message in messages if (self.refusal, message.id) in barrier.refused]
        return Confirmation(tuple(failed), tuple(unknown))


def confirm(
    messages: Iterable[Message], send: Callable[[Holder, list[Message]], object], refusal: type[BrokerError]
) -> Confirming:
    """Send a command for each message that is held, and a barrier for each session.

    Args:
        messages: of any sessions.
        send: queues the commands for the messages of one session.
        refusal: nsqd's error for one of the commands.

    Raises:
        OptionError: a value is not a message.
    """
    if not isinstance(messages, Iterable) or isinstance(messages, str):
        raise OptionError(f"messages is {messages!r}; allowed is a list of messages")
    of_session: dict[Holder, list[Message]] = {}
    not_sent = []
    for message in messages:
        if not isinstance(message, Message):
            raise OptionError(f"messages has {message!r}; allowed is a list of messages")
        session = message.session
        if session.held.get(message.id) is message:
            of_session.setdefault(session, []).append(message)
        else:
            not_sent.append(message)
    sent = []
    for session, held in of_session.items():
        send(session, held)
        sent.append((session.add_barrier(), held))
    for session in of_session:
        session.connection.flush()
    return Confirming(tuple(not_sent), tuple(sent), refusal)
