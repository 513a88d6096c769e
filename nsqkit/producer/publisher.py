"""Dispatching: which nsqd a publish goes to, how long it waits for one, and whether it goes again.

    wait for room ─▶ choose an nsqd, or wait for one ─▶ offer ─▶ await the answer ─▶ OK
                     ▲                                             │
                     ├── certainly has not arrived ────────────────┤
                     ├── was refused with others: alone now ───────┤
                     └── may have arrived, attempts are left ──────┴──▶ raise

The rule it guards: what has certainly not arrived always goes again and costs no attempt; what may have arrived goes
again only if the user has allowed duplicates; what a broker refuses for what it is never does. A batch that is refused
for one of its messages goes again in single messages, so that only that one fails. Wherever the task is
cancelled, the bytes that it took room for are given back once, and the answers of others stay theirs.

How to read it: ``send``, then what it waits for; ``send_now`` is for those who do not wait at all, and
``keep_sending_again`` for what of theirs was refused in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from nsqkit.client.failure import not_connected
from nsqkit.errors import (
    Closed,
    ConnectionLost,
    DeferredPublishFailed,
    MultiPublishFailed,
    NotConnected,
    NSQError,
    PublishFailed,
    WouldWait,
)
from nsqkit.producer.linger import BatchRefused
from nsqkit.producer.receipt import LingeringReceipt, Receipt
from nsqkit.wire.commands import encode_publish

if TYPE_CHECKING:
    from nsqkit.producer.policy import Policy
    from nsqkit.producer.pool_connection import PoolConnection
    from nsqkit.producer.send_window import SendWindow
    from nsqkit.producer.waiter import MakeWaiter
    from nsqkit.transport.loan import Loan

MAY_GO_AGAIN: Final = (ConnectionLost, PublishFailed, MultiPublishFailed, DeferredPublishFailed)
"""After which another attempt makes sense; all other refusals are for what was published."""

CLOSED: Final = "the producer is closed: publish inside of 'async with Producer(…)'"


class Publisher:
    """Brings publishes to their answers.

    Args:
        destinations: the pool, in the order in which the user has named it.
        policy: chooses among them.
        make_waiter: makes what a publish waits with.
        outstanding: limits the bytes without an answer; None for no limit.
        attempts: how often a publish may be sent.
        connect_timeout: seconds that a publish waits for a connection, all its waits together.
    """

    def __init__(
        self,
        destinations: Sequence[PoolConnection],
        policy: Policy,
        *,
        make_waiter: MakeWaiter,
        outstanding: SendWindow | None,
        attempts: int,
        connect_timeout: float,
    ) -> None:
        self.destinations = destinations
        self.outstanding = outstanding
        self._policy = policy
        self._only = destinations[0] if len(destinations) == 1 else None
        self._make_waiter = make_waiter
        self._attempts = attempts
        self._connect_timeout = connect_timeout
        self._closed = False
        self._waiting_count = 0
        self._watching = False
        self._changed = anyio.Event()
        self._refused: deque[tuple[Receipt, bytes, bytes | None]] = deque()
        self._has_refused = anyio.Event()
        self._sending_again = False

    @property
    def waiting_count(self) -> int:
        """Publishes that wait for a connection or for room."""
        return self._waiting_count + (self.outstanding.waiting_count if self.outstanding else 0)

    async def send(
        self, topic: bytes | None, data: bytes, key: bytes | None, count: int, *, is_again: bool = False
    ) -> None:
        """Return when a broker has acknowledged.

        Args:
            topic: of a message that may linger; None if ``data`` is a command.
            data: the body of that message, or the command.
            key: what belongs together has the same; None if nothing does.
            count: how many messages that is.
            is_again: whether it was sent before: its bytes count towards what is outstanding already, and ``close``
                does not end it.

        Raises:
            NSQError: what came instead of an acknowledgement.
        """
        if self._closed and not is_again:
            raise Closed(CLOSED)
        outstanding, size = None if is_again else self.outstanding, len(data)
        if outstanding is not None and not outstanding.take(size):
            await self._wait_for_room(outstanding, size)
        attempts_left = self._attempts
        tried: tuple[PoolConnection, ...] = ()
        deadline: float | None = None
        lost: NSQError | None = None
        try:
            while True:
                waiter = self._make_waiter()
                destination = self._only or self._choose(key, tried)
                session = None if destination is None else destination.offer(topic, data, waiter)
                if destination is None or session is None:
                    deadline = deadline or anyio.current_time() + self._connect_timeout
                    await self._wait_for_destination(deadline, lost, is_again=is_again)
                    continue
                try:
                    error = await waiter
                except BaseException:
                    waiter.cancel()
                    if not session.withdraw(waiter, size):
                        size = 0  # the session gives it back when the broker has answered
                    raise
                if error is None:
                    destination.message_count += count
                    return
                destination.take_note(error)
                if isinstance(error, BatchRefused) and topic is not None:
                    data = encode_publish(topic, data)
                    topic = None
                    continue
                if not isinstance(error, NotConnected):
                    attempts_left -= 1
                    if self._closed or not attempts_left or not isinstance(error, MAY_GO_AGAIN):
                        raise error
                    lost = error if isinstance(error, ConnectionLost) else lost
                tried = (*tried, destination)
        finally:
            if outstanding is not None and size:
                outstanding.give_back(size)

    def send_now(self, topic: bytes | None, data: bytes, key: bytes | None, count: int) -> Receipt:
        """Put a publish on its way, once, and return what its answer will be told to.

        Raises:
            WouldWait: there is no connection, or no room.
            Closed: the producer is closed.
        """
        if self._closed:
            raise Closed(CLOSED)
        outstanding, size = self.outstanding, len(data)
        if outstanding is not None and not outstanding.take(size):
            raise WouldWait(
                f"{outstanding.size} bytes are outstanding, so there is no room for {size} more now"
            )
        destination = self._only or self._choose(key, ())
        if destination is not None:
            if topic is None:
                receipt = Receipt(destination.settle, count, size)
            else:
                again = partial(self._send_again, topic, data, key)
                receipt = LingeringReceipt(destination.settle, count, size, again)
            if destination.offer(topic, data, receipt) is not None:
                return receipt
        if outstanding is not None:
            outstanding.give_back(size)
        raise WouldWait(f"{self._names()}: there is no connection that takes a publish now")

    def _send_again(self, topic: bytes, body: bytes, key: bytes | None, receipt: Receipt) -> None:
        receipt.settle = self._settle_again
        self._refused.append((receipt, encode_publish(topic, body), key))
        self._has_refused.set()

    def _settle_again(self, error: NSQError | None, count: int, size: int) -> None:
        """Give back the bytes; ``send`` has counted the message."""
        if self.outstanding is not None:
            self.outstanding.give_back(size)

    async def keep_sending_again(self) -> None:
        """Send again, one after the other, publishes that were refused in a batch; until cancelled."""
        try:
            while True:
                await self._has_refused.wait()
                while self._refused:
                    receipt, command, key = self._refused.popleft()
                    await self._send_for(receipt, command, key)
                self._has_refused = anyio.Event()
                self.on_change()
        finally:
            for receipt, _, _ in self._refused:
                receipt.set_result(Closed(CLOSED))

    async def _send_for(self, receipt: Receipt, command: bytes, key: bytes | None) -> None:
        error: NSQError | None = ConnectionLost("the producer was left before the broker answered")
        self._sending_again = True
        try:
            await self.send(None, command, key, 1, is_again=True)
            error = None
        except NSQError as refusal:
            error = refusal
        finally:
            self._sending_again = False
            receipt.set_result(error)

    def lend(self, on_idle: Callable[[], None]) -> Loan | None:
        """Hand the one connection to threads, where nobody else wants it; ``send_now`` is for them until it is back.

        Args:
            on_idle: as for ``Loan``.
        """
        if self._only is None or self.outstanding is not None or self._waiting_count or self._closed:
            return None
        return self._only.lend(on_idle)

    # ---- change and end ------------------------------------------------------------------------------------------

    def on_change(self) -> None:
        """Take note that something was received, or that a connection has begun or ended."""
        # Nobody is woken in vain: there may be thousands who wait.
        if self._watching or (self._waiting_count and (self._is_ready() or self._failure is not None)):
            self._announce()

    async def wait_ready(self) -> None:
        """Return when there is an nsqd that takes publishes.

        Raises:
            NotConnected: there was none for ``connect_timeout`` seconds.
            NSQError: with ``end_on_permanent_error``, a permanent error.
            Closed: the producer is closed.
        """
        if not self._is_ready():
            deadline = anyio.current_time() + self._connect_timeout
            await self._wait_for_destination(deadline, None)

    async def wait_connected(self) -> None:
        """Return when there is a connection to an nsqd at least.

        Raises:
            Closed: the producer is closed.
            NSQError: with ``end_on_permanent_error``, a permanent error.
        """
        while not any(destination.is_connected for destination in self.destinations):
            if self._closed:
                raise Closed(CLOSED)
            if self._failure is not None:
                raise copy(self._failure)
            await self.wait_change()

    def close(self) -> None:
        """Take no more publishes; those that still wait for a connection or for room are told."""
        self._closed = True
        if self.outstanding is not None:
            self.outstanding.refuse(Closed, CLOSED)
        self._announce()

    async def drain(self) -> None:
        """Return when nobody waits for an answer any more."""
        for destination in self.destinations:
            destination.hurry()
        while (
            self._refused
            or self._sending_again
            or any(destination.is_awaited for destination in self.destinations)
        ):
            await self.wait_change()

    async def wait_change(self) -> None:
        """Return after the next change."""
        self._watching = True
        await self._changed.wait()

    # ---- within --------------------------------------------------------------------------------------------------

    def _choose(self, key: bytes | None, tried: Collection[PoolConnection]) -> PoolConnection | None:
        """Return where to publish now: rather where it was not tried before, else anywhere."""
        chosen = self._policy.choose(self.destinations, key, tried)
        return self._policy.choose(self.destinations, key) if chosen is None and tried else chosen

    def _is_ready(self) -> bool:
        return any(destination.is_ready for destination in self.destinations)

    async def _wait_for_room(self, outstanding: SendWindow, size: int) -> None:
        waiter = self._make_waiter()
        outstanding.wait(size, waiter)
        try:
            error = await waiter
            if error is not None:
                raise error
        except BaseException:
            outstanding.leave(waiter, size)
            raise

    async def _wait_for_destination(
        self, deadline: float, lost: NSQError | None, *, is_again: bool = False
    ) -> None:
        """Return once there is one.

        The broker answers all that it takes, so room, too, comes with something received: with a change.
        """
        self._waiting_count += 1
        try:
            with anyio.CancelScope(deadline=deadline):
                while (is_again or not self._closed) and self._failure is None:
                    await self._changed.wait()
                    if self._is_ready():
                        return
        finally:
            self._waiting_count -= 1
        if lost is not None:
            raise lost  # it may have arrived, which no later error may hide
        if self._closed and not is_again:
            raise Closed(CLOSED)
        raise copy(self._failure) if self._failure is not None else self.not_connected(self._connect_timeout)

    @property
    def _failure(self) -> NSQError | None:
        """The permanent error of an nsqd that is not dialled any more."""
        return next((d.connection.failure for d in self.destinations if d.connection.failure), None)

    def not_connected(self, timeout: float) -> NotConnected:
        """Return the error for a wait of that many seconds, with the last error of each connection."""
        within = f"within {timeout:g} seconds"
        if any(destination.is_connected for destination in self.destinations):
            return NotConnected(f"{self._names()} did not take any more {within}")
        errors = {destination.address: destination.connection.error for destination in self.destinations}
        return not_connected(f"no connection to {self._names()} {within}", errors)

    def _names(self) -> str:
        return " or ".join(destination.address for destination in self.destinations)

    def _announce(self) -> None:
        self._watching = False
        self._changed.set()
        self._changed = anyio.Event()
