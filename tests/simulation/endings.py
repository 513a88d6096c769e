"""The sessions that a broker has ended, and whose connections are not closed yet: a client reads the last bytes slowly.

Until then a broker keeps the state of a session. If the deletion of its channel has ended it, others may create this
channel again meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from tests.simulation.connection import Connection


class Endings(dict["Session", "Connection"]):
    """The sessions of one broker, with their connections, which have the times."""

    def earliest(self, *others_ns: int | None) -> int | None:
        """Return the earliest time of these and others."""
        times_ns = [time_ns for time_ns in others_ns if time_ns is not None]
        return min((*times_ns, *(link.close_ns for link in self.values())), default=None)

    def take_due(self, now_ns: int) -> list[Session]:
        """Remove and return those whose time has come."""
        due = [session for session, link in self.items() if link.close_ns <= now_ns]
        for session in due:
            del self[session]
        return due
