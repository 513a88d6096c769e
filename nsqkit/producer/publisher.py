"""The publisher: chooses an nsqd for each publish, waits for one, and publishes again where that is allowed.

    wait for the send window ─▶ choose an nsqd, or wait for one ─▶ offer ─▶ await the answer ─▶ OK
                                ▲                                             │
                                ├── certainly has not arrived ────────────────┤
                                ├── was refused with others: alone now ───────┤
                                └── may have arrived, attempts are left ──────┴──▶ raise

A publish that has certainly not arrived is always sent again and costs no attempt. One that may have arrived is sent
again only if the user has allowed duplicates. One that a broker refuses because of its content is never sent again. The
messages of a batch that was refused because of one of them are sent again one by one, so that only that one fails.
If a publishing task is cancelled, the bytes that it took from the send window are released once.

``publish`` waits for the answer; ``publish_nowait`` returns a receipt, and ``resend`` sends again the receipts of a
refused batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from nsqkit.client.failure import not_connected
from nsqkit.clock import NS_PER_S, move_on_after
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
from nsqkit.loop_thread.one_shot import OneShot
from nsqkit.producer.linger import BatchRefused
from nsqkit.producer.pool_connection import Receipt
from nsqkit.transport.asyncio_stream import asyncio_loop
from nsqkit.wire.commands import encode_publish

if TYPE_CHECKING:
    from nsqkit.clock import Clock
    from nsqkit.producer.policy import Policy
    from nsqkit.producer.pool_connection import PoolConnection
    from nsqkit.producer.send_window import SendWindow

RETRIABLE: Final = (ConnectionLost, PublishFailed, MultiPublishFailed, DeferredPublishFailed)
"""Errors after which another attempt may succeed; all other refusals are about the content."""

CLOSED: Final = "the producer is closed: publish inside of 'async with Producer(…)'"
LEFT: Final = "the producer was left before the broker answered"


class Publisher:
    """Publishes to a pool.

    Args:
        connections: the pool, in the order in which the user has named it.
        policy: chooses among them.
        clock: the time.
        window: limits the bytes without an answer; None for no limit.
        attempts: how often a publish may be sent.
        connect_timeout: seconds that a publish waits for a connection, all its waits together.
    """

    def __init__(
        self,
        connections: Sequence[PoolConnection],
        policy: Policy,
        *,
        clock: Clock,
        window: SendWindow[OneShot[None]] | None,
        attempts: int,
        connect_timeout: float,
    ) -> None:
        self.connections = connections
        self.window = window
        self._policy = policy
        self._only = connections[0] if len(connections) == 1 else None
        self._clock = clock
        self._attempts = attempts
        self._connect_timeout = connect_timeout
        loop = asyncio_loop()
        # Two thirds of the cost of create_future, for each message.
        self._make_waiter: Callable[[], asyncio.Future[None] | None] = (
            _no_waiter if loop is None else partial(asyncio.Future, loop=loop)
        )
        self._closed = False
        self._waiting_count = 0
        self._changes_are_awaited = False
        self._changed = anyio.Event()
        self._refused: deque[Receipt] = deque()
        self._has_refused = anyio.Event()
        self._resend_failure: Exception | None = None  # why the last message of resend may have arrived

    @property
    def waiting_count(self) -> int:
        """Publishes that wait for a connection or for the send window."""
        return self._waiting_count + (self.window.waiting_count if self.window else 0)

    def idle_connection(self) -> PoolConnection | None:
        """Return the only connection, if no task publishes or waits to; None where others may wait or be chosen."""
        only = self._only
        if only is None or self.window is not None or self._waiting_count or self._closed:
            return None
        return only if only.is_idle else None

    async def publish(
        self, topic: bytes | None, data: bytes, key: bytes | None, count: int, *, again: bool = False
    ) -> None:
        """Return when a broker has acknowledged.

        Args:
            topic: of a message that may linger; None if ``data`` is a command.
            data: the body of that message, or the command.
            key: publishes with the same key belong together; None for no key.
            count: the number of messages.
            again: whether this resends: the send window has its bytes already, and ``close`` does not end it.

        Raises:
            NSQError: the error instead of an acknowledgement.
        """
        if self._closed and not again:
            raise Closed(CLOSED)
        window, size = None if again else self.window, len(data)
        if window is not None and not window.take(size):
            await self._wait_for_window(window, size)
        attempts_left = self._attempts
        tried: tuple[PoolConnection, ...] = ()
        wait_ns = round(self._connect_timeout * NS_PER_S)
        failure: Exception | None = None
        try:
            while True:
                waiter = self._make_waiter()
                receipt = Receipt(count, 0, None, waiter)
                connection = self._only or self._choose(key, tried)
                session = None if connection is None else connection.offer(topic, data, receipt)
                if connection is None or session is None:
                    begun_ns = self._clock.now_ns()
                    await self._wait_for_connection(begun_ns + wait_ns, failure, again=again)
                    wait_ns -= self._clock.now_ns() - begun_ns
                    continue
                try:
                    await (waiter or receipt)
                except NSQError:  # on trio
                    pass
                except BaseException:
                    if not receipt.is_answered and not session.withdraw(receipt):
                        receipt.size, size = size, 0  # the answer releases it
                        failure = ConnectionLost(LEFT)
                    raise
                error = receipt.error
                if error is None:
                    return
                if isinstance(error, BatchRefused) and topic is not None:
                    data = encode_publish(topic, data)
                    topic = None
                    continue
                if not isinstance(error, NotConnected):
                    attempts_left -= 1
                    # That a message may have arrived is the outcome, however later attempts fail.
                    failure = failure if isinstance(failure, ConnectionLost) else error
                    if self._closed or not attempts_left or not isinstance(error, RETRIABLE):
                        raise failure
                tried = (*tried, connection)
        finally:
            if again:
                self._resend_failure = failure
            if window is not None and size:
                _admit(window.release(size))

    def publish_nowait(self, topic: bytes | None, data: bytes, key: bytes | None, count: int) -> Receipt:
        """Publish once, and return the receipt that gets the answer.

        Raises:
            WouldWait: there is no connection, or no space in the send window.
            Closed: the producer is closed.
        """
        if self._closed:
            raise Closed(CLOSED)
        window, size = self.window, len(data)
        if window is not None and not window.take(size):
            raise WouldWait(f"{window.size} bytes are outstanding, so there is no room for {size} more now")
        connection = self._only or self._choose(key, ())
        if connection is not None:
            again = None if topic is None else (topic, data, key)
            receipt = Receipt(count, 0 if window is None else size, again)
            if connection.offer(topic, data, receipt) is not None:
                return receipt
        if window is not None:
            _admit(window.release(size))
        raise WouldWait(f"{self._names()}: there is no connection that takes a publish now")

    async def resend(self) -> None:
        """Publish again, one by one, the receipts of refused batches; until cancelled."""
        try:
            while True:
                await self._has_refused.wait()
                while self._refused:
                    await self._resend(self._refused[0])
                self._has_refused = anyio.Event()
                self._announce()
        finally:
            for receipt in self._refused:
                self._settle(receipt, Closed(CLOSED))

    async def _resend(self, receipt: Receipt) -> None:
        assert receipt.again is not None
        topic, body, key = receipt.again
        error: Exception | None = None
        try:
            await self.publish(None, encode_publish(topic, body), key, 1, again=True)
        except NSQError as refusal:
            error = refusal
        except BaseException:
            error = self._resend_failure or Closed(CLOSED)
            raise
        finally:
            self._refused.popleft()
            self._settle(receipt, error)

    def _settle(self, receipt: Receipt, error: Exception | None) -> None:
        """Resolve a receipt that was sent again; the second publish has counted the message."""
        receipt.resolve(error)
        if receipt.size and self.window is not None:
            _admit(self.window.release(receipt.size))

    # ---- changes and the end -------------------------------------------------------------------------------------

    def on_change(self, connection: PoolConnection) -> None:
        """Process what a connection has received, its beginning or its end."""
        if refused := connection.process_events():
            self._refused += refused
            self._has_refused.set()
        # Waking tasks that cannot go on costs a turn of the event loop for each, and thousands may wait.
        if self._changes_are_awaited or (self._waiting_count and (self._is_ready() or self._failure is not None)):
            self._announce()

    async def wait_ready(self) -> None:
        """Return when there is an nsqd that accepts publishes.

        Raises:
            NotConnected: there was none for ``connect_timeout`` seconds.
            NSQError: with ``end_on_permanent_error``, a permanent error.
            Closed: the producer is closed.
        """
        if not self._is_ready():
            await self._wait_for_connection(self._clock.now_ns() + round(self._connect_timeout * NS_PER_S), None)

    async def wait_connected(self) -> None:
        """Return when there is a connection to at least one nsqd.

        Raises:
            Closed: the producer is closed.
            NSQError: with ``end_on_permanent_error``, a permanent error.
        """
        while not any(connection.is_connected for connection in self.connections):
            if self._closed:
                raise Closed(CLOSED)
            if self._failure is not None:
                raise copy(self._failure)
            await self.wait_change()

    def close(self) -> None:
        """Accept no more publishes; those that wait for a connection or for the send window raise ``Closed``."""
        self._closed = True
        if self.window is not None:
            for waiter in self.window.clear():
                waiter.resolve(Closed(CLOSED))
        self._announce()

    async def drain(self) -> None:
        """Return when every publish has its answer."""
        for connection in self.connections:
            connection.flush()
        while self._refused or any(connection.is_awaited for connection in self.connections):
            await self.wait_change()

    async def wait_change(self) -> None:
        """Return after the next change."""
        self._changes_are_awaited = True
        await self._changed.wait()

    # ---- internals -----------------------------------------------------------------------------------------------

    def _choose(self, key: bytes | None, tried: Collection[PoolConnection]) -> PoolConnection | None:
        """Choose an nsqd where the publish was not tried before; else any."""
        chosen = self._policy.choose(self.connections, key, tried)
        return self._policy.choose(self.connections, key) if chosen is None and tried else chosen

    def _is_ready(self) -> bool:
        return any(connection.is_ready for connection in self.connections)

    async def _wait_for_window(self, window: SendWindow[OneShot[None]], size: int) -> None:
        waiter: OneShot[None] = OneShot()
        window.wait(size, waiter)
        try:
            await waiter
        except BaseException:
            if waiter.error is None:  # otherwise it was removed without getting space
                _admit(window.leave(waiter, size))
            raise

    async def _wait_for_connection(self, deadline_ns: int, failure: Exception | None, *, again: bool = False) -> None:
        """Return when an nsqd is ready."""
        self._waiting_count += 1
        try:
            with move_on_after(self._clock, (deadline_ns - self._clock.now_ns()) / NS_PER_S):
                while (again or not self._closed) and self._failure is None:
                    await self._changed.wait()
                    if self._is_ready():
                        return
        finally:
            self._waiting_count -= 1
        if failure is not None:
            raise failure
        if self._closed and not again:
            raise Closed(CLOSED)
        raise copy(self._failure) if self._failure is not None else self.not_connected(self._connect_timeout)

    @property
    def _failure(self) -> NSQError | None:
        """The permanent error of an nsqd that is not dialled any more."""
        return next((c.connection.failure for c in self.connections if c.connection.failure), None)

    def not_connected(self, timeout: float) -> NotConnected:
        """Return the error for a wait of that many seconds, with the last error of each connection."""
        within = f"within {timeout:g} seconds"
        if any(connection.is_connected for connection in self.connections):
            return NotConnected(f"{self._names()} did not take any more {within}")
        errors = {connection.address: connection.connection.error for connection in self.connections}
        return not_connected(f"no connection to {self._names()} {within}", errors)

    def _names(self) -> str:
        return " or ".join(connection.address for connection in self.connections)

    def _announce(self) -> None:
        self._changes_are_awaited = False
        self._changed.set()
        self._changed = anyio.Event()


def _admit(waiters: list[OneShot[None]]) -> None:
    for waiter in waiters:
        waiter.resolve(None)


def _no_waiter() -> None:
    """Return no future: trio has none."""
