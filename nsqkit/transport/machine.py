"""The interface of a machine: a protocol without I/O.

A machine is one end of a connection, or an engine that serves many of them. Its driver passes it bytes and
the time, and takes bytes and events from it. A machine never calls its owner, never waits and never reads a clock.

| method | meaning |
|---|---|
| ``receive_data(data, now_ns)`` | process everything that one read returned |
| ``process_input(now_ns)`` | process more of the input that is left (``has_input``) |
| ``receive_eof(now_ns)`` | the peer sends nothing more |
| ``events()`` | return what happened since the last call |
| ``data_to_send()`` | return the bytes to write |
| ``next_deadline()`` | return when to call ``handle_deadline`` |
| ``handle_deadline(now_ns)`` | do the work that is due |

A machine that shares its event loop with others processes a bounded part of its input in each call of ``receive_data``
and ``process_input``. While ``has_input`` is True, its driver calls ``process_input`` again after the other connections
had their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Machine(Protocol):
    """One end of a connection."""

    @property
    def ended(self) -> bool:
        """True once the connection is to be closed, after the bytes that ``data_to_send`` still returns are sent."""

    @property
    def outbox_full(self) -> bool:
        """True while the driver must not read: too many bytes wait to be sent, or a command waits for an answer."""

    @property
    def has_output(self) -> bool:
        """True while there are bytes to send, or the connection is to be closed; else no bytes are asked for."""

    @property
    def has_input(self) -> bool:
        """True while received input is left that ``process_input`` can process; the driver reads nothing meanwhile."""

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Process everything that one read returned, or a bounded part of it."""

    def process_input(self, now_ns: int) -> None:
        """Process a bounded part of the input that is left; do nothing if none is."""

    def receive_eof(self, now_ns: int) -> None:
        """Record that the peer sends nothing more."""

    @property
    def has_events(self) -> bool:
        """True if ``events`` returns anything. The pump reads it after ``data_to_send``, which may record an event."""

    def events(self) -> Sequence[object]:
        """Return everything that happened since the last call, in order, and forget it."""

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them; the driver calls again only after it has written them."""


class Timed(Protocol):
    """A machine that has deadlines."""

    def next_deadline(self) -> int | None:
        """Return the time, in ns, at which to call ``handle_deadline``; None for never."""

    def handle_deadline(self, now_ns: int) -> None:
        """Do the work that is due."""
