"""A connection on loan: for a while, threads talk to its socket themselves.

    event loop ── lent ──▶ one thread at a time ── asked for, unused, or anything unusual ──▶ event loop

The rule it guards: either the event loop has the machine, or the thread that holds the lock has it. The event loop
never waits for a thread: it asks, and is told when it can have the connection. And a thread can be interrupted at any
line (Ctrl-C raises anywhere); a machine that was left in the middle of something is told nothing any more, and its
connection is closed.

How to read it: ``use`` is the thread's side, ``take_back`` the event loop's.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nsqkit.errors import NSQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Machine

PATIENCE_MS: Final = 100
"""How long a thread waits for an answer before the event loop goes on with it, which has all the other timeouts."""

RECEIVE_SIZE: Final = 16 * 1024
"""Bytes that one read brings at most: answers are small."""


class Question(Protocol):
    """Something that the machine was told to ask."""

    is_answered: bool


Q = TypeVar("Q", bound=Question)


class Loan:
    """A machine and its socket, from being lent until the event loop has them back.

    Args:
        machine: what speaks the protocol.
        fileno: the socket, which does not block; whoever lends it neither reads nor writes meanwhile.
        clock: the time.
        on_idle: called by a thread after ``take_back`` was called in vain: now it can be.
        on_back: called in the event loop with the loan when it is over.

    Attributes:
        is_broken: a thread was interrupted while it had the machine, which is of no use any more.
        unsent: what the machine has said and the kernel has not taken.
        use_count: how often it was used.
    """

    def __init__(
        self,
        machine: Machine,
        fileno: int,
        clock: Clock,
        *,
        on_idle: Callable[[], None],
        on_back: Callable[[Loan], None],
    ) -> None:
        self.is_broken = False
        self.unsent = b""
        self.use_count = 0
        self._machine = machine
        self._clock = clock
        self._on_idle = on_idle
        self._on_back = on_back
        self._lock = threading.Lock()
        self._is_out = True
        self._is_asked_for = False
        self._socket = socket.socket(fileno=os.dup(fileno))
        self._asked, self._ask = socket.socketpair()  # readable once it is asked for
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._asked, select.POLLIN)
        self._waits_for_room = False

    # ---- in a thread -----------------------------------------------------------------------------------------------

    def use(self, ask: Callable[[], Q], leave: Callable[[Q], object]) -> Q | None:
        """Ask something, and wait for its answer.

        Args:
            ask: tells the machine; if it raises, nothing was asked.
            leave: called if the event loop is to go on with it, with what ``ask`` has returned.

        Returns:
            What ``ask`` has returned; None, and nothing was asked, if the loan is over or another thread has it.

        Raises:
            NSQError: as ``ask``.
        """
        if self._is_asked_for or self._lock.locked():
            return None
        try:
            with self._lock:
                if not self._is_out or self._is_asked_for or self.is_broken:
                    return None
                return self._use(ask, leave)
        finally:
            if self._is_asked_for:  # whoever held the lock as it was asked for, and however that ends
                self._on_idle()

    def _use(self, ask: Callable[[], Q], leave: Callable[[Q], object]) -> Q:
        self.is_broken = True  # until it is seen that it is not
        try:
            question = ask()
        except NSQError:
            self.is_broken = False
            raise
        if not self._converse(question):
            leave(question)
            self._is_asked_for = True
        self.use_count += 1
        self.is_broken = False
        return question

    def _converse(self, question: Question) -> bool:
        """Send and receive until the answer is there; tell whether nothing is left for the event loop."""
        machine, now_ns = self._machine, self._clock.now_ns
        try:
            self.unsent = machine.data_to_send(now_ns())
            while True:
                if self.unsent:
                    self._send()
                if machine.ended or question.is_answered:
                    return not machine.ended and not self.unsent
                if not self._wait():
                    return False
                data = self._receive()
                if data == b"":
                    return False  # the event loop sees it, too
                if data is not None:
                    machine.receive_data(data, now_ns())
                    while machine.has_input:  # no other connection waits for this thread
                        machine.process_input(now_ns())
                    self.unsent += machine.data_to_send(now_ns())
        except OSError:
            return False

    def _send(self) -> None:
        try:
            self.unsent = self.unsent[self._socket.send(self.unsent) :]
        except BlockingIOError:
            pass
        if self._waits_for_room != bool(self.unsent):
            self._waits_for_room = not self._waits_for_room
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT * self._waits_for_room)

    def _receive(self) -> bytes | None:
        """Return what has come, ``b""`` at the end, None if it was room for more to send that was waited for."""
        try:
            return self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return None

    def _wait(self) -> bool:
        """Wait for the socket; tell whether something has happened there and nobody asks for it."""
        ready = self._poll.poll(PATIENCE_MS)
        return bool(ready) and not self._is_asked_for

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def take_back(self) -> bool:
        """End it if no thread uses it now, and tell whether it is over; otherwise ask for it."""
        if self._end():
            return True
        if not self._is_asked_for:
            self._is_asked_for = True
            self._ask.send(b"\0")
        return self._end()  # the thread may have looked a moment before

    def _end(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        self._is_out = False
        self._lock.release()
        for each in (self._socket, self._asked, self._ask):
            each.close()
        self._on_back(self)
        return True
