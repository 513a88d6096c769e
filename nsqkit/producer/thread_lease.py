"""Publishing in the caller's own thread: a thread that publishes alone leases the connection from the event loop.

That two threads wake each other takes longer than the rest of a publish. So a thread that has published several times
in a row, while no other has, detaches the connection from the event loop and drives the same session over the same
socket. The lease ends as soon as anything else uses the producer, when it is not used for a while, and at anything
unusual; then the event loop goes on with the connection.

Either the event loop uses the session, or the thread that holds the lease's lock. The event loop never waits for a
thread: it recalls the lease, and is woken when the lease can be ended. A thread can be interrupted at any line (Ctrl-C
raises anywhere), so a session that was in use then is used no more, and its connection is closed.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsqkit.clock import NS_PER_S
from nsqkit.errors import ConnectionLost, NSQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.clock import Clock
    from nsqkit.loop_thread import LoopClient
    from nsqkit.producer.arguments import Bytes
    from nsqkit.producer.pool_connection import PoolConnection, Receipt
    from nsqkit.producer.producer import Producer
    from nsqkit.producer.session import ProducerSession

ALONE_COUNT_MIN: Final = 16
"""Publishes of one thread in a row after which it leases: a lease does not pay for fewer."""

REFUSED_PAUSE_COUNT: Final = 1000
"""Publishes before the next attempt after a lease was refused, since some producers never lease."""

ANSWER_TIMEOUT_MS: Final = 100
"""How long a thread waits for an answer before the event loop does, which has all the other timeouts."""

UNUSED_NS: Final = NS_PER_S // 10
"""A lease that is not used for so long ends; a heartbeat is answered within twice that."""

DEADLINE_MARGIN_NS: Final = NS_PER_S
"""The next deadline of a session that is leased is at least so far away: the event loop must handle it."""

RECEIVE_SIZE: Final = 16 * 1024
"""Bytes that one read returns at most: answers are small."""


class ThreadLease:
    """A session and its socket, from ``Connection.detach`` until the event loop has them back.

    A thread calls ``wake`` after ``end`` returned False: then the lease can be ended.

    Attributes:
        use_count: how often it was used.
        is_ended: True once the event loop has the connection again.
    """

    def __init__(
        self,
        connection: PoolConnection,
        session: ProducerSession,
        fileno: int,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.use_count = 0
        self.is_ended = False
        self._connection = connection
        self._session = session
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._is_recalled = False
        self._is_broken = False  # a thread was interrupted in the middle of something
        self._unsent = b""
        self._socket = socket.socket(fileno=os.dup(fileno))
        self._recalled, self._recall = socket.socketpair()  # readable once it is recalled
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._recalled, select.POLLIN)
        self._polls_writable = False

    # ---- in a thread -----------------------------------------------------------------------------------------------

    def use(self, publish: Callable[[], Receipt]) -> Receipt | None:
        """Call ``publish`` and wait for the answer; if it does not come soon, the event loop resolves the receipt.

        Returns:
            The receipt; None, without a call, if the lease is over or another thread uses it.

        Raises:
            NSQError: as ``publish``; nothing was sent then.
        """
        if self._is_recalled or self._lock.locked():
            return None
        try:
            with self._lock:
                if self.is_ended or self._is_recalled or self._is_broken:
                    return None
                self._is_broken = True  # until the end of this block is reached
                try:
                    receipt = publish()
                except NSQError:
                    self._is_broken = False
                    raise
                if not self._exchange(receipt):
                    self._is_recalled = True
                self.use_count += 1
                self._is_broken = False
                return receipt
        finally:
            if self._is_recalled:
                self._wake()

    def _exchange(self, receipt: Receipt) -> bool:
        """Send and receive until the answer is there; return False if the event loop has to go on."""
        session, now_ns = self._session, self._clock.now_ns
        try:
            self._unsent = session.data_to_send()
            while True:
                if self._unsent:
                    self._send()
                if session.ended or receipt.is_answered:
                    return not session.ended and not self._unsent
                if not self._poll.poll(ANSWER_TIMEOUT_MS) or self._is_recalled:
                    return False
                try:
                    data = self._socket.recv(RECEIVE_SIZE)
                except BlockingIOError:  # the socket is writable
                    continue
                if not data:
                    return False  # the event loop finds the end, too
                session.receive_data(data, now_ns())
                while session.has_input:
                    session.process_input(now_ns())
                self._connection.process_events()
                if session.has_output:
                    self._unsent += session.data_to_send()
        except OSError:
            return False

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        if self._polls_writable != bool(self._unsent):
            self._polls_writable = not self._polls_writable
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT * self._polls_writable)

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def end(self) -> bool:
        """End the lease if no thread uses it, and return True; otherwise recall it, and return False."""
        if not self._lock.acquire(blocking=False):
            if not self._is_recalled:
                self._is_recalled = True
                self._recall.send(b"\0")
            if not self._lock.acquire(blocking=False):  # the thread may have looked a moment before
                return False
        self.is_ended = True
        self._lock.release()
        for each in (self._socket, self._recalled, self._recall):
            each.close()
        connection = self._connection.connection
        if self._is_broken:
            connection.abort(ConnectionLost("a thread was interrupted while it used the connection"))
        else:
            connection.attach(self._unsent)
        return True


class ThreadPublisher:
    """Leases the connection of one open façade to the thread that publishes alone."""

    def __init__(self, loop_client: LoopClient[Producer]) -> None:
        self._loop_client = loop_client
        self._lease: ThreadLease | None = None
        self._thread_id = 0
        self._alone_count = 0

    def publish(self, begin: Callable[..., Receipt], what: tuple[Any, ...], key: str | Bytes | None) -> bool:
        """Publish in this thread if it has a lease or gets one, and return when the broker has acknowledged.

        Returns:
            False if there is no lease; nothing was published then.

        Raises:
            NSQError: as ``begin``, and the error instead of an acknowledgement.
            RuntimeError: as ``LoopClient.check``.
        """
        self._loop_client.check()
        lease = self._lease or self._request()
        if lease is None:
            return False
        receipt = lease.use(partial(begin, self._loop_client.client, *what, key=key))
        if receipt is None or not receipt.is_answered:
            self._lease = None
        if receipt is None:
            return False
        receipt.get()
        return True

    def _request(self) -> ThreadLease | None:
        """Return a lease if this thread has published alone for a while and there is one."""
        thread_id = threading.get_ident()
        if thread_id != self._thread_id:
            self._thread_id, self._alone_count = thread_id, 0
        self._alone_count += 1
        if self._alone_count <= ALONE_COUNT_MIN:
            return None
        self._lease = self._loop_client.lease(self._make)
        self._alone_count = 0 if self._lease is not None else -REFUSED_PAUSE_COUNT
        return self._lease

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def _make(self) -> ThreadLease | None:
        pool, loop_client = self._loop_client.client.pool, self._loop_client
        connection = None if pool is None else pool.publisher.idle_connection()
        # On Windows, an event loop that waits for a socket cannot be kept from taking the received bytes.
        if sys.platform == "win32" or pool is None or connection is None:
            return None
        session = connection.connection.session
        deadline_ns = None if session is None else session.next_deadline()
        if deadline_ns is not None and deadline_ns < pool.clock.now_ns() + DEADLINE_MARGIN_NS:
            return None
        fileno = None if session is None else connection.connection.detach()
        if session is None or fileno is None:
            return None
        lease = ThreadLease(connection, session, fileno, pool.clock, loop_client.wake)
        pool.start_soon(partial(self._watch, lease, pool.clock))
        return lease

    async def _watch(self, lease: ThreadLease, clock: Clock) -> None:
        """End the lease when it is not used; an interrupted thread, too, leaves one that is not used."""
        use_count = -1
        while not lease.is_ended:
            if lease.use_count == use_count and self._loop_client.end_lease():
                self._loop_client.wake()
            use_count = lease.use_count
            await clock.wait_until(clock.now_ns() + UNUSED_NS)
