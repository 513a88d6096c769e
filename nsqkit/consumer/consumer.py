"""The consumer: receives the messages of a channel from every nsqd that has it.

The rule it guards: what was received is answered or given back. Leaving the consumer, by whatever way, asks for no
more, gives back what nobody has begun with, and waits for each nsqd to say that it has understood.

How to read it: the three ways of receiving (``async for message``, ``batches``, ``run``), then how it starts and
stops. What is sent when is decided in ``core``.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import anyio

from nsqkit.client.background import Background
from nsqkit.client.connection import Connection, Dial, dial_tcp
from nsqkit.client.options import check_addresses, make_options
from nsqkit.client.reconnect import Reconnect
from nsqkit.clock import NS_PER_S, Clock, LoopClock
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.options import ConsumerKeywords, ConsumerOptions
from nsqkit.consumer.session import ConsumerSession
from nsqkit.errors import Closed, OptionError
from nsqkit.transport.alarm import Alarm
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.consumer.message import Message

logger = logging.getLogger("nsqkit.consumer")

SyncHandler: TypeAlias = "Callable[[Message], None]"
AsyncHandler: TypeAlias = "Callable[[Message], Awaitable[None]]"

BREATH = 0.02
"""Seconds that a handler which is not async may keep the event loop before other tasks get a turn."""


class Consumer:
    """Consumes one channel of one topic, for ``async with``, on asyncio and trio.

    Args:
        topic: the topic.
        channel: the channel.
        nsqd_tcp_addresses: ``host:port`` of each nsqd; one that is down is dialled until it is there.
        clock: the time; by default the real one.
        dial: how to reach an address; by default TCP.
        random: chance, in reconnecting and in picking connections; by default seeded by the system.
        options: see ``ConsumerOptions``.

    Raises:
        OptionError: a name, an address or an option that cannot be used.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Sequence[str],
        clock: Clock | None = None,
        dial: Dial = dial_tcp,
        random: Random | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self.options = make_options(ConsumerOptions, dict(options))
        self._addresses = check_addresses(nsqd_tcp_addresses, "nsqd_tcp_addresses")
        if not self._addresses:
            raise OptionError("nsqd_tcp_addresses is empty; allowed is a list of at least one host:port")
        self._clock = clock
        self._dial = dial
        self._random = random or Random()
        self._core = ConsumerCore(
            encode_topic(topic),
            encode_channel(channel),
            options=self.options,
            identity=self.options.identify_request(
                socket.gethostname(),
                msg_timeout_ms=round(self.options.msg_timeout * 1000),
                sample_rate=self.options.sample_rate,
            ),
            random=self._random,
            on_output=self._on_output,
        )
        self._connections: dict[str, Connection[ConsumerSession]] = {}
        self._tasks: Background | None = None
        self._alarm: Alarm | None = None
        self._arrived = anyio.Event()
        self._changed = anyio.Event()

    # ---- three ways of receiving ---------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        inbox = self._core.inbox
        while not inbox:
            if not await self._wait_for_messages():
                raise StopAsyncIteration
        return inbox.popleft()

    def batches(self) -> Batches:
        """Return an iterator over whatever has arrived: lists of at least one message.

        It is the fastest way: nothing is awaited for a message, only for a batch.
        """
        return Batches(self)

    async def run(self, handler: AsyncHandler | SyncHandler, *, concurrency: int = 1) -> None:
        """Call ``handler`` with each message; finish the message when it returns, requeue it when it raises.

        A handler that has answered the message itself is left alone. One that is cancelled has its message given
        back at once. Returns when the consumer is closed and the handlers that had begun have returned.

        Args:
            handler: an async function, of which ``concurrency`` run at a time, or a plain one, which is called in
                the event loop and should therefore be quick.
            concurrency: at least 1.

        Raises:
            OptionError: a concurrency below 1.
        """
        if not isinstance(concurrency, int) or concurrency < 1:
            raise OptionError(f"concurrency is {concurrency!r}; allowed is a whole number of at least 1")
        self._check_entered()
        if concurrency == 1:
            await self._work(handler)
            return
        async with anyio.create_task_group() as tasks:
            for _ in range(concurrency):
                tasks.start_soon(self._work, handler)

    async def _work(self, handler: Callable[[Message], Any]) -> None:
        """Handle one message after the other: a standing worker, for a task for each message costs ten times more."""
        inbox = self._core.inbox
        while inbox or await self._wait_for_messages():
            breath_ends = time.monotonic() + BREATH
            while inbox and time.monotonic() < breath_ends:
                message = inbox.popleft()
                session = message.session
                try:
                    result = handler(message)
                    if result is not None and hasattr(result, "__await__"):
                        await result
                except Exception:
                    logger.exception("the handler failed on %r from %s", message, session.address)
                    session.requeue(message, None, backoff=True)
                except BaseException:
                    session.requeue(message, 0, backoff=False)
                    raise
                else:
                    session.finish(message)
            await anyio.lowlevel.checkpoint()

    async def _wait_for_messages(self) -> bool:
        """Return True when there may be messages, False when there will be none."""
        if self._core.is_closing:
            return False
        self._check_entered()
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        await self._arrived.wait()
        return True

    def _check_entered(self) -> None:
        if self._tasks is None:
            raise Closed("the consumer is closed: receive inside of 'async with Consumer(…)'")

    # ---- while it runs -------------------------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """True while some connection has at least 85 % of its RDY unanswered; then a batch should be handled."""
        return self._core.flow.is_starved

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """The nsqds whose subscription does not stand at present, each with the last error of its connection."""
        return {
            address: connection.error
            for address, connection in self._connections.items()
            if connection.session is None or not connection.session.is_open
        }

    async def wait_connected(self) -> None:
        """Return when every nsqd has answered the subscription.

        Raises:
            Closed: outside of ``async with``, or closed meanwhile.
        """
        self._check_entered()
        while self.unconnected:
            if self._core.is_closing:
                raise Closed("the consumer is closed: it connects to no nsqd any more")
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()

    def pause(self) -> None:
        """Ask for no more messages; what was delivered goes on."""
        self._core.pause(self._now_ns())
        self._after()

    def resume(self) -> None:
        """Ask for messages again."""
        self._core.resume(self._now_ns())
        self._after()

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change ``max_in_flight``, at least 0.

        Raises:
            OptionError: less than 0.
        """
        if not isinstance(max_in_flight, int) or max_in_flight < 0:
            raise OptionError(f"max_in_flight is {max_in_flight!r}; allowed is a whole number of at least 0")
        self._core.set_max_in_flight(max_in_flight, self._now_ns())
        self._after()

    def close(self) -> None:
        """Ask for no more messages and give back what nobody has begun with; ``run`` and ``async for`` end.

        What has been begun with can still be answered: each connection stays until all of it is.
        """
        self._core.close(self._now_ns())
        for connection in self._connections.values():
            connection.stop()
        self._arrived.set()
        self._changed.set()

    # ---- start and stop ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Consumer:
        if self._core.is_closing or self._tasks is not None:
            raise Closed("a consumer is entered once; make another one")
        self._clock = self._clock or LoopClock()
        self._alarm = Alarm(self._core, self._clock, after=self._after)
        self._tasks = Background()
        await self._tasks.start()
        self._tasks.start_soon(self._alarm.run)
        for address in self._addresses:
            self._connect(address)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Give everything back that is not answered, wait for the brokers, close; nothing is left running."""
        assert self._tasks is not None
        tasks = self._tasks
        self.close()
        self._core.give_back_all()
        with anyio.move_on_after(self.options.close_timeout, shield=True):
            while any(self._is_leaving(connection) for connection in self._connections.values()):
                if self._changed.is_set():
                    self._changed = anyio.Event()
                await self._changed.wait()
        self._tasks = None
        return await tasks.end(exc_type, exc, traceback)

    def _is_leaving(self, connection: Connection[ConsumerSession]) -> bool:
        """Tell whether a good-bye is still on its way; a connection that was never open has none to say."""
        session = connection.session
        return connection.is_running and session is not None and session.is_closing

    # ---- within --------------------------------------------------------------------------------------------------

    def _connect(self, address: str) -> None:
        assert self._tasks is not None
        assert self._clock is not None
        connection = self._connections[address] = Connection(
            address,
            lambda now_ns: ConsumerSession(self._core, address, now_ns),
            clock=self._clock,
            dial=self._dial,
            dial_timeout=self.options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(self.options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(self.options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=self._on_change,
        )
        self._tasks.start_soon(connection.run)

    def _on_output(self, session: ConsumerSession) -> None:
        self._connections[session.address].wake()
        if self._alarm is not None:
            self._alarm.check()

    def _on_change(self, connection: Connection[ConsumerSession]) -> None:
        self._changed.set()
        self._after()

    def _after(self) -> None:
        if self._core.inbox:
            self._arrived.set()
        if self._alarm is not None:
            self._alarm.check()

    def _now_ns(self) -> int:
        return self._clock.now_ns() if self._clock is not None else 0


class Batches:
    """The iterator of ``Consumer.batches``."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> list[Message]:
        core = self._consumer._core
        while not core.inbox:
            if not await self._consumer._wait_for_messages():
                raise StopAsyncIteration
        batch = list(core.inbox)
        core.inbox.clear()
        return batch
