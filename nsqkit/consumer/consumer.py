"""The consumer: receives the messages of a channel from every nsqd that has it.

The rule it guards: what was received is answered or given back. Leaving the consumer, by whatever way, asks for no
more, gives back what nobody has begun with, and waits for each nsqd to say that it has understood.

How to read it: the three ways of receiving (``async for message``, ``batches``, ``run``), what can be asked and changed
while it runs, then how it starts and stops. What is sent when is decided in ``core``, which nsqds there are, in
``connections``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Unpack

import anyio

from nsqkit.client.background import Background
from nsqkit.client.dialler import Dial, Dialler
from nsqkit.client.options import check_addresses, make_options
from nsqkit.clock import Clock, LoopClock
from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.batch_handling import BatchHandling
from nsqkit.consumer.batches import Batches
from nsqkit.consumer.connections import Connections
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.giving_up import GivingUp, discard
from nsqkit.consumer.handler_options import HandlerKeywords, HandlerOptions
from nsqkit.consumer.handling import Handling
from nsqkit.consumer.options import ConsumerKeywords, ConsumerOptions
from nsqkit.consumer.stats import BackoffStats, ConsumerStats
from nsqkit.errors import Closed, OptionError
from nsqkit.lookup.discovery import Discovery
from nsqkit.transport.alarm import Alarm
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.consumer.message import Message
    from nsqkit.consumer.session import ConsumerSession

logger = logging.getLogger("nsqkit.consumer")


class Consumer:
    """Consumes one channel of one topic, for ``async with``, on asyncio and trio.

    Args:
        topic: the topic.
        channel: the channel.
        nsqd_tcp_addresses: ``host:port`` of each nsqd; one that is down is dialled until it is there.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd; the nsqds that they list are dialled, too,
            for as long as one of them lists them.
        on_backoff: called with each change of the backoff's state; it is to be quick, and what it raises is logged.
        clock: the time; by default the real one.
        dial: how to reach an address, in the place of connecting to it.
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
        nsqd_tcp_addresses: Sequence[str] = (),
        lookupd_http_addresses: Sequence[str] = (),
        on_backoff: Callable[[BackoffStats], None] | None = None,
        clock: Clock | None = None,
        dial: Dial | None = None,
        random: Random | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self.options = make_options(ConsumerOptions, dict(options))
        addresses = check_addresses(nsqd_tcp_addresses, "nsqd_tcp_addresses")
        if not addresses and not lookupd_http_addresses:
            raise OptionError(
                "nsqd_tcp_addresses and lookupd_http_addresses are empty; one of them must name somebody"
            )
        self._clock = clock
        self._backoff_hook = on_backoff
        random = random or Random()
        self._core = ConsumerCore(
            encode_topic(topic),
            encode_channel(channel),
            options=self.options,
            identity=self.options.identify_request(
                socket.gethostname(),
                msg_timeout_ms=round(self.options.msg_timeout * 1000),
                sample_rate=self.options.sample_rate,
            ),
            random=random,
            on_output=self._on_output,
            on_finished=self._on_finished,
            on_backoff=self._on_backoff,
            tell_time=self._now_ns,
        )
        self._connections = Connections(
            self._core, addresses, dial=Dialler(self.options, dial), random=random, on_change=self._after
        )
        self._discovery = Discovery(
            lookupd_http_addresses,
            topic=topic,
            on_change=self._on_discovered,
            options=self.options,
            clock=clock,
            random=random,
        )
        self._log_fields = {"topic": topic, "channel": channel}
        self._tasks: Background | None = None
        self._alarm: Alarm | None = None
        self._arrived = anyio.Event()
        self._handlings: set[Handling] = set()

    # ---- three ways of receiving ---------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        inbox = self._core.inbox
        while not inbox:
            if not await self._wait_for_messages():
                raise StopAsyncIteration
        return inbox.popleft()

    def batches(self, max_messages: int | None = None, max_wait: float = 0.0) -> Batches:
        """Return an iterator over lists of at least one message, each with a method ``finish`` for all of it.

        It is the fastest way: nothing is awaited for a message, only for a batch.

        Args:
            max_messages: how many a batch has at most; None is no limit.
            max_wait: seconds for which a batch that has begun waits for ``max_messages``; 0 takes what is there. It
                waits no longer once ``is_starved``, for then no more can come.

        Raises:
            OptionError: a limit below 1, or a wait below 0 or without a limit.
        """
        return Batches(self, max_messages, max_wait)

    async def run(
        self, handler: Callable[[Message], Awaitable[object] | None], **options: Unpack[HandlerKeywords]
    ) -> None:
        """Call ``handler`` with each message; finish the message when it returns, requeue it when it raises.

        A handler that has answered the message itself is left alone. One that is cancelled has its message given
        back at once. Returns when the consumer is closed and the handlers that had begun have returned. What else may
        become of a message is told in ``nsqkit.consumer.handling``.

        Args:
            handler: an async function, of which ``concurrency`` run at a time, or a plain one, which is called in
                the event loop and should therefore be quick, or else in threads.
            options: see ``HandlerOptions``: ``concurrency``, ``key``, ``in_threads``, ``auto_touch``,
                ``cancel_at_timeout``, ``giving_up``.

        Raises:
            OptionError: an option that cannot be used.
            Closed: outside of ``async with``.
        """
        handling = self._handling(handler, make_options(HandlerOptions, dict(options)))
        self._handlings.add(handling)
        try:
            await handling.run()
        finally:
            self._handlings.discard(handling)
            handling.empty_lanes()

    async def run_batches(
        self,
        handler: Callable[[list[Message]], Awaitable[object] | None],
        *,
        max_messages: int | None = None,
        max_wait: float = 0.0,
        concurrency: int = 1,
        giving_up: GivingUp = discard,
    ) -> None:
        """Call ``handler`` with whole lists of messages: as ``run``, with the fate of all in one hand.

        Args:
            handler: an async function, or a plain one that is quick, of a list of at least one message.
            max_messages: as in ``batches``.
            max_wait: as in ``batches``.
            concurrency: lists that are handled at a time.
            giving_up: as in ``run``; such a message is not in the list.

        Raises:
            OptionError: an option that cannot be used.
            Closed: outside of ``async with``.
        """
        options = HandlerOptions(concurrency=concurrency, giving_up=giving_up)
        single = self._handling(handler, options)
        await BatchHandling(self.batches(max_messages, max_wait), handler, concurrency, single).run()

    def _handling(self, handler: Callable[[Any], object], options: HandlerOptions) -> Handling:
        self._check_entered()
        assert self._clock is not None
        return Handling(self._core, handler, options, clock=self._clock, wait=self._wait_for_messages)

    async def _wait_for_messages(self) -> bool:
        """Return True when there may be messages, False when there will be none."""
        if self._core.is_closing:
            return False
        self._check_entered()
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        await self._arrived.wait()
        return True

    def _check_not_stopped(self) -> None:
        if self._core.is_closing:
            raise Closed("the consumer is closed: it connects to no nsqd any more")

    def _check_entered(self) -> None:
        if self._tasks is None:
            raise Closed("the consumer is closed: receive inside of 'async with Consumer(…)'")

    # ---- while it runs -------------------------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """True while some connection has at least 85 % of its RDY unanswered; then a batch should be handled."""
        return self._core.flow.is_starved

    @property
    def backoff(self) -> BackoffStats:
        """Where the backoff is: its state, its counter, and the seconds that are left of a wait."""
        return self._core.backoff_stats(self._now_ns())

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """The nsqds whose subscription does not stand at present, each with the last error of its connection."""
        return self._connections.unconnected

    def stats(self) -> ConsumerStats:
        """Return what there is to be told about the consumer at this moment."""
        core, flow = self._core, self._core.flow.statistics()
        return ConsumerStats(
            received=core.received_count,
            finished=core.finished_count,
            requeued=core.requeued_count,
            touched=core.touched_count,
            timed_out=core.timed_out_count,
            given_up=core.given_up_count,
            refused=core.refused_count,
            in_flight=flow.in_flight,
            waiting=len(core.inbox),
            max_in_flight=flow.max_in_flight,
            paused=flow.paused,
            starved=flow.starved,
            backoff=self.backoff,
            connections=self._connections.stats(),
        )

    async def wait_connected(self) -> None:
        """Return when there is an nsqd, and every one of them has answered the subscription.

        Raises:
            Closed: outside of ``async with``, or stopped meanwhile.
        """
        self._check_entered()
        while not self._connections.are_complete:
            self._check_not_stopped()
            await self._connections.wait_change()

    def pause(self) -> None:
        """Ask for no more messages; what was delivered goes on."""
        self._core.pause(self._now_ns())
        self._after()

    def resume(self) -> None:
        """Ask for messages again."""
        self._core.resume(self._now_ns())
        self._after()

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """Change ``max_in_flight``, at least 0.

        Raises:
            OptionError: less than 0.
        """
        if not isinstance(max_in_flight, int) or max_in_flight < 0:
            raise OptionError(f"max_in_flight is {max_in_flight!r}; allowed is a whole number of at least 0")
        self._core.set_max_in_flight(max_in_flight, self._now_ns())
        self._after()

    def connect_to_nsqd(self, address: str) -> None:
        """Consume from one nsqd more; it is dialled until it is there. One that is connected already stays so.

        Args:
            address: its ``host:port``.

        Raises:
            OptionError: the address cannot be one.
            Closed: the consumer was stopped.
        """
        self._check_not_stopped()
        (address,) = check_addresses([address], "address")
        self._connections.keep(address)

    def disconnect_from_nsqd(self, address: str) -> None:
        """Consume from this nsqd no more.

        It delivers nothing more, what nobody has begun with is given back at once, and what has been begun with can
        be answered for ``close_timeout``. One that nsqlookupds list comes back when they are asked again.

        Args:
            address: its ``host:port``, as it was given or discovered.

        Raises:
            OptionError: the consumer has no such nsqd.
        """
        if not self._connections.leave(address):
            raise OptionError(f"address is {address!r}, which is no nsqd of this consumer")
        self._after()

    def connect_to_lookupd(self, address: str) -> None:
        """Ask one nsqlookupd more, beginning now; one that is asked already is left alone.

        Args:
            address: its ``host:port`` or URL.

        Raises:
            OptionError: the address cannot be one.
            Closed: the consumer was stopped.
        """
        self._check_not_stopped()
        self._discovery.add_lookupd(address)

    def disconnect_from_lookupd(self, address: str) -> None:
        """Ask this nsqlookupd no more.

        A connection to an nsqd that only it has listed lasts until it is lost.

        Args:
            address: its ``host:port`` or URL.

        Raises:
            OptionError: it is none of those that are asked.
        """
        self._discovery.remove_lookupd(address)

    def stop(self) -> None:
        """Ask for no more messages and give back what nobody has begun with; ``run`` and ``async for`` end.

        What has been begun with can still be answered: each connection stays until all of it is.
        """
        for handling in self._handlings:
            handling.empty_lanes()
        self._core.close(self._now_ns())
        self._connections.stop()
        self._arrived.set()

    # ---- start and stop ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Consumer:
        if self._core.is_closing or self._tasks is not None:
            raise Closed("a consumer is entered once; make another one")
        self._clock = self._clock or LoopClock()
        self._alarm = Alarm(self._core, self._clock, after=self._after)
        self._tasks = Background()
        await self._tasks.start()
        self._tasks.start_soon(self._alarm.run)
        self._connections.start(self._tasks, self._clock)
        self._tasks.start_soon(self._discovery.run)
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
        self.stop()
        self._core.give_back_all()
        with anyio.move_on_after(self.options.close_timeout, shield=True):
            await self._connections.wait_gone()
        self._tasks = None
        return await tasks.end(exc_type, exc, traceback)

    # ---- within --------------------------------------------------------------------------------------------------

    def _on_discovered(self, come: list[str], gone: list[str]) -> None:
        self._connections.listed(self._discovery.addresses)
        self._after()

    def _on_output(self, session: ConsumerSession) -> None:
        self._connections.wake(session)
        if session.ended and not self._core.is_closing:
            self._discovery.wake()  # perhaps its nsqd has moved
        if self._alarm is not None:
            self._alarm.check()

    def _on_finished(self, session: ConsumerSession) -> None:
        self._connections.flush(session)

    def _on_backoff(self) -> None:
        backoff = self.backoff
        if backoff.state is BackoffState.WAITING:
            logger.warning(
                "backing off for %.3f s, counter %d",
                backoff.wait,
                backoff.counter,
                extra=self._fields(backoff),
            )
        elif backoff.state is BackoffState.PROBING:
            logger.info("backoff: waiting for a test message", extra=self._fields(backoff))
        else:
            logger.info("backoff is over", extra=self._fields(backoff))
        if self._backoff_hook is not None:
            try:
                self._backoff_hook(backoff)
            except Exception:
                logger.exception("on_backoff failed", extra=self._fields(backoff))

    def _fields(self, backoff: BackoffStats) -> dict[str, object]:
        return {**self._log_fields, "backoff_state": backoff.state.value, "backoff_counter": backoff.counter}

    def _after(self) -> None:
        if self._core.inbox:
            self._arrived.set()
        for handling in self._handlings:
            handling.look()
        if self._alarm is not None:
            self._alarm.check()

    def _now_ns(self) -> int:
        return self._clock.now_ns() if self._clock is not None else 0
