"""What a machine is: the verbs that a pump and an alarm call.

The rule it guards: a machine is driven by a few verbs and told the time with each; it never calls back, never waits
and never asks. Both ends of a connection are machines, and one pump serves both.

| verb | meaning |
|---|---|
| ``receive_data(data, now_ns)`` | here is everything one read returned |
| ``go_on(now_ns)`` | it is your turn again, to work on what you have left undone |
| ``receive_eof(now_ns)`` | the peer sends nothing more |
| ``data_to_send(now_ns)`` | what must be written, joined once, then forgotten |
| ``next_deadline()`` | when to call if nothing else happens |
| ``handle_deadline(now_ns)`` | that time has come |

A machine that serves others at the same time does a bounded part of its work in each call of ``receive_data`` and
``go_on``, and says by ``has_input`` that there is more. The next call comes when all others have had their turns.

What happened is told by the machine's own events, to its owner. The first four are a connection's; the last
two belong to whatever keeps time for many connections at once, such as the broker.
"""

from __future__ import annotations

from typing import Protocol


class Machine(Protocol):
    """One end of a connection."""

    @property
    def ended(self) -> bool:
        """True once the connection is to be closed, after what ``data_to_send`` still returns."""
        ...

    @property
    def outbox_full(self) -> bool:
        """True while nothing more should be read: so much waits to be sent, or the machine itself waits."""
        ...

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or an end to be carried out."""
        ...

    @property
    def has_input(self) -> bool:
        """True while a part of what was received is left and ``go_on`` would work on it; nothing is read meanwhile."""
        ...

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Take everything one read returned."""
        ...

    def go_on(self, now_ns: int) -> None:
        """Work on what is left of what was received; do nothing if nothing is."""
        ...

    def receive_eof(self, now_ns: int) -> None:
        """Take note that the peer sends nothing more."""
        ...

    def data_to_send(self, now_ns: int) -> bytes:
        """Return what must be written, and forget it; called again only once that was taken by the stream."""
        ...


class Timed(Protocol):
    """Something that has deadlines."""

    def next_deadline(self) -> int | None:
        """Return the time, in ns, at which to call ``handle_deadline``; None for never."""
        ...

    def handle_deadline(self, now_ns: int) -> None:
        """Do what is due."""
        ...
