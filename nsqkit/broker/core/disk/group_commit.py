"""Group commit: answers to publishers wait until what they published is on disk, many of them for one sync.

    put  put  put ──▶ begin ──▶ sync … ──▶ end: all three are answered
                        put  put ──▶ begin ──▶ …

The rule it guards: an OK is sent when the message is on disk, and not before. A commit covers what was put before it
began; what is put while it runs waits for the next one. When a sync fails, nobody knows what is on disk: the
publishers are not answered, their connections end, and they publish again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session


class GroupCommit:
    """The commits of one broker.

    Attributes:
        ticket: the number of the commit that will cover what is put now.
        wanted: something waits for that commit.
    """

    __slots__ = ("_holding", "ticket", "wanted")

    def __init__(self) -> None:
        self.ticket = 1
        self.wanted = False
        self._holding: dict[Session, None] = {}

    def hold(self, session: Session) -> int:
        """Note that ``session`` waits for the next commit; return its number."""
        self.wanted = True
        self._holding[session] = None
        return self.ticket

    def begin(self) -> int:
        """Begin a commit; return its number."""
        ticket = self.ticket
        self.ticket += 1
        self.wanted = False
        return ticket

    def end(self, ticket: int) -> None:
        """Answer those who waited for this commit: it is on disk."""
        for session in list(self._holding):
            if not session.release(ticket):
                del self._holding[session]

    def fail(self, reason: str) -> None:
        """End the connections of all who wait: what they published may be on disk or not."""
        for session in self._holding:
            session.end(f"commit failed: {reason}")
        self._holding.clear()

    def forget(self, session: Session) -> None:
        """Take note that nobody waits there any more."""
        self._holding.pop(session, None)
