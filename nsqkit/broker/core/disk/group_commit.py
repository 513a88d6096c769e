"""Group commit: answers to publishers wait until their messages are on disk, many of them for one sync.

    put  put  put ──▶ begin ──▶ sync … ──▶ end: all three are answered
                        put  put ──▶ begin ──▶ …

An OK is sent after its message is synced, and not before. A commit covers everything that was put before it began;
later messages wait for the next one. When a sync fails, the state of the disk is unknown: the publishers are not
answered, their connections end, and they publish again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_Holder = TypeVar("_Holder")


class GroupCommit(Generic[_Holder]):
    """The commits of one broker; a holder is an object whose answers wait for a commit.

    Attributes:
        ticket: the number of the commit that covers messages put now.
        wanted: at least one holder waits for that commit.
    """

    __slots__ = ("_last_tickets", "ticket", "wanted")

    def __init__(self) -> None:
        self.ticket = 1
        self.wanted = False
        self._last_tickets: dict[_Holder, int] = {}

    def hold(self, holder: _Holder) -> int:
        """Have ``holder`` wait for the next commit; return its number."""
        self.wanted = True
        self._last_tickets[holder] = self.ticket
        return self.ticket

    def begin(self) -> int:
        """Begin a commit; return its number."""
        ticket = self.ticket
        self.ticket += 1
        self.wanted = False
        return ticket

    def end(self, ticket: int) -> list[_Holder]:
        """End a commit; return the holders, which may release the answers up to ``ticket``."""
        holders = list(self._last_tickets)
        self._last_tickets = {holder: last for holder, last in self._last_tickets.items() if last > ticket}
        return holders

    def fail(self) -> list[_Holder]:
        """End all commits without success; return the holders, whose messages may be on disk or not."""
        holders = list(self._last_tickets)
        self._last_tickets.clear()
        return holders

    def forget(self, holder: _Holder) -> None:
        """Remove a holder whose connection is closed."""
        self._last_tickets.pop(holder, None)
