"""The producer: publishes to one nsqd, and returns when nsqd has the message.

The rule it guards: when ``publish`` returns, the broker has acknowledged the message; when it raises, the error says
whether the message was refused (``BrokerError``), was never sent (``OptionError``, ``NotConnected``), or may have
arrived (``ConnectionLost``). Any number of tasks may publish at once: their commands share one connection, one
write and one read.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Unpack

import anyio
import attrs

from nsqkit.client.background import Background
from nsqkit.client.connection import Connection, Dial, dial_tcp
from nsqkit.client.options import ConnectionKeywords, ConnectionOptions, make_options, seconds
from nsqkit.client.reconnect import Reconnect
from nsqkit.clock import NS_PER_S, Clock, LoopClock
from nsqkit.errors import Closed, NotConnected, NSQError, OptionError
from nsqkit.producer.pipeline import ProducerSession
from nsqkit.transport.address import split_address
from nsqkit.transport.asyncio_stream import asyncio_loop
from nsqkit.wire.commands import encode_deferred_publish, encode_multi_publish, encode_publish
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

CLOSE_TIMEOUT = 1.0
"""Seconds that the broker has to take what was published before the producer was closed."""

topic_name = lru_cache(maxsize=1024)(encode_topic)


class ProducerKeywords(ConnectionKeywords, total=False):
    """The options of ``ProducerOptions`` as keyword arguments."""

    connect_timeout: float
    max_defer_timeout: float


@attrs.frozen(kw_only=True)
class ProducerOptions(ConnectionOptions):
    """What can be set about a producer, besides what ``ConnectionOptions`` has.

    Attributes:
        connect_timeout: seconds that a publish waits for a connection while there is none, 0 to 3600.
        max_defer_timeout: seconds that a message may be deferred; nsqd's default for ``--max-req-timeout``, 1 hour.
    """

    connect_timeout: float = seconds(5.0, 0.0, 3600.0)
    max_defer_timeout: float = seconds(3600.0, 0.0, 1e9)


class Answer:
    """The answer to one publish, for the task that awaits it.

    Args:
        loop: asyncio's, whose futures cost a third of an event; None on trio.
    """

    __slots__ = ("_error", "_event", "_future")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._error: NSQError | None = None
        self._future = None if loop is None else loop.create_future()
        self._event = anyio.Event() if loop is None else None

    def answered(self, error: NSQError | None) -> None:
        """Take the answer."""
        self._error = error
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Return when the answer was OK, raise what it was otherwise."""
        if self._event is not None:
            await self._event.wait()
        elif self._future is not None:
            await self._future
        if self._error is not None:
            raise self._error


class Producer:
    """Publishes to one nsqd, for ``async with``, on asyncio and trio.

    Args:
        nsqd_tcp_address: ``host:port``.
        clock: the time; by default the real one.
        dial: how to reach the address; by default TCP.
        random: draws the delays before dialling again; by default seeded by the system.
        options: see ``ProducerOptions``.

    Raises:
        OptionError: an address or an option that cannot be used.

    Entering returns at once; the connection is made meanwhile, and made again whenever it is lost, after delays
    that grow exponentially, with full jitter.
    """

    def __init__(
        self,
        nsqd_tcp_address: str,
        *,
        clock: Clock | None = None,
        dial: Dial = dial_tcp,
        random: Random | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        split_address(nsqd_tcp_address)
        self.options = make_options(ProducerOptions, dict(options))
        self._address = nsqd_tcp_address
        self._clock = clock
        self._dial = dial
        self._random = random or Random()
        self._identity = self.options.identify_request(socket.gethostname())
        self._connection: Connection[ProducerSession] | None = None
        self._tasks: Background | None = None
        self._changed = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Producer:
        if self._tasks is not None:
            raise Closed("the producer is entered already; make another one")
        clock = self._clock or LoopClock()
        self._loop = asyncio_loop()
        self._connection = Connection(
            self._address,
            self._make_session,
            clock=clock,
            dial=self._dial,
            dial_timeout=self.options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(self.options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(self.options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=self._on_change,
        )
        self._tasks = Background()
        await self._tasks.start()
        self._tasks.start_soon(self._connection.run)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Send what was published and close; nothing is left running."""
        assert self._tasks is not None
        assert self._connection is not None
        tasks, self._tasks = self._tasks, None
        connection = self._connection
        connection.stop()
        if connection.session is not None and connection.session.is_open:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                connection.session.end(None)
                connection.wake()
                while connection.is_running:
                    await self._wait_change()
        return await tasks.end(exc_type, exc, traceback)

    async def publish(self, topic: str, body: bytes) -> None:
        """Publish one message.

        Args:
            topic: its topic.
            body: 1 to ``max_msg_size`` bytes.

        Raises:
            OptionError: a name or a body that nsqd would refuse; nothing was sent.
            NotConnected: there was no connection for ``connect_timeout`` seconds; nothing was sent.
            BrokerError: the broker refused.
            ConnectionLost: the connection was lost before the answer; the message may have arrived.
            Closed: outside of ``async with``.
        """
        self._check_body(body, "body")
        await self._send(encode_publish(topic_name(topic), body))

    async def multi_publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish messages in one command: all or none.

        Args:
            topic: their topic.
            bodies: at least one, each of 1 to ``max_msg_size`` bytes, together at most ``max_body_size``.

        Raises:
            NSQError: as ``publish``.
        """
        if isinstance(bodies, bytes | str) or not isinstance(bodies, Sequence) or not bodies:
            raise OptionError(f"bodies is {bodies!r:.100}; allowed is a list of at least one bytes")
        self._check_bodies(bodies)
        size = 4 + sum(map(len, bodies)) + 4 * len(bodies)
        if size > self.options.max_body_size:
            raise OptionError(
                f"{len(bodies)} bodies are {size} bytes on the wire; allowed are max_body_size, "
                f"{self.options.max_body_size}"
            )
        await self._send(encode_multi_publish(topic_name(topic), bodies))

    async def deferred_publish(self, topic: str, body: bytes, *, delay: float) -> None:
        """Publish one message that is delivered later.

        Args:
            topic: its topic.
            body: 1 to ``max_msg_size`` bytes.
            delay: seconds, 0 to ``max_defer_timeout``; rounded to milliseconds.

        Raises:
            NSQError: as ``publish``.
        """
        self._check_body(body, "body")
        if not isinstance(delay, int | float) or not 0 <= delay <= self.options.max_defer_timeout:
            raise OptionError(f"delay is {delay!r}; allowed is 0 to {self.options.max_defer_timeout} seconds")
        await self._send(encode_deferred_publish(topic_name(topic), body, round(delay * 1000)))

    @property
    def is_connected(self) -> bool:
        """True while there is a connection that was greeted."""
        connection = self._connection
        return connection is not None and connection.session is not None and connection.session.is_open

    # ---- within ------------------------------------------------------------------------------------------------

    def _check_body(self, body: bytes, name: str) -> None:
        if not isinstance(body, bytes):
            raise OptionError(f"{name} is a {type(body).__name__}; allowed is bytes")
        if not 0 < len(body) <= self.options.max_msg_size:
            raise OptionError(
                f"{name} has {len(body)} bytes; allowed are 1 to max_msg_size, {self.options.max_msg_size}"
            )

    def _check_bodies(self, bodies: Sequence[bytes]) -> None:
        if set(map(type, bodies)) == {bytes}:
            lengths = list(map(len, bodies))
            if min(lengths) and max(lengths) <= self.options.max_msg_size:
                return
        for n, body in enumerate(bodies):
            self._check_body(body, f"bodies[{n}]")

    async def _send(self, command: bytes) -> None:
        session = self._open_session() or await self._wait_session()
        answer = Answer(self._loop)
        session.publish(command, answer)
        assert self._connection is not None
        if session.waiting_count == 1:
            self._connection.flush()
        else:  # others are on their way, so there will be more: one write for all of them
            self._connection.wake()
        await answer.wait()

    def _open_session(self) -> ProducerSession | None:
        """Return the session if a command may be sent on it now."""
        session = self._connection.session if self._connection is not None else None
        return session if session is not None and session.is_open and session.has_room else None

    async def _wait_session(self) -> ProducerSession:
        """Return the session once there is one that has room.

        The broker answers all that it takes, so room, too, comes with something received: with a change.
        """
        with anyio.move_on_after(self.options.connect_timeout):
            while (session := self._open_session()) is None:
                if self._tasks is None:
                    raise Closed("the producer is closed: publish inside of 'async with Producer(…)'")
                await self._wait_change()
            return session
        why = self._connection.error if self._connection is not None else None
        raise NotConnected(
            f"no connection to {self._address} within {self.options.connect_timeout:g} seconds"
        ) from why

    def _make_session(self, now_ns: int) -> ProducerSession:
        return ProducerSession(
            self._identity,
            read_timeout_ns=round(self.options.read_timeout * NS_PER_S),
            max_msg_size=self.options.max_msg_size,
            now_ns=now_ns,
        )

    def _on_change(self, connection: Connection[ProducerSession]) -> None:
        self._changed.set()

    async def _wait_change(self) -> None:
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()
