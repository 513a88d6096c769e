"""The consumer: receives the messages of a channel from every nsqd that has it.

Every message that was received is finished or requeued. A stop sets RDY to 0 and requeues the messages that
no handler has begun. Handlers that have begun may return within ``close_timeout``; then they are cancelled and their
messages requeued. Leaving the consumer stops it, and waits for all of this and for the CLOSE_WAIT of each nsqd.

The file has the three ways of receiving (``async for message``, ``batches``, ``run``), then the methods for a running
consumer, then start and stop. ``core`` decides when which command is sent; ``connections`` has the nsqds.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Unpack

import anyio
import attrs

from nsqkit.client.dialler import Dial
from nsqkit.client.failure import not_connected
from nsqkit.client.task_scope import TaskScope
from nsqkit.clock import NS_PER_S, Clock, LoopClock, move_on_after
from nsqkit.consumer.active_handlers import ActiveHandlers
from nsqkit.consumer.batch_handling import BatchHandling
from nsqkit.consumer.batches import Batch, Batches
from nsqkit.consumer.callbacks import guard_callbacks
from nsqkit.consumer.connections import Connections
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.dead_letter import GivingUp, discard
from nsqkit.consumer.handler_options import HandlerKeywords, HandlerOptions
from nsqkit.consumer.log import ConsumerLog
from nsqkit.consumer.options import ConsumerKeywords, ConsumerOptions
from nsqkit.consumer.stats import BackoffStats, ConsumerStats
from nsqkit.consumer.stop_signals import LoopCaller, StopSignals, check_signals
from nsqkit.consumer.subscription import Subscription
from nsqkit.errors import Closed, OptionError
from nsqkit.lookup.discovery import Discovery
from nsqkit.options.checks import check_addresses, check_tools, check_value, make_options, take_timeout
from nsqkit.options.durations import Seconds
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.client.serializers import Serializer
    from nsqkit.consumer.confirmation import Confirmation
    from nsqkit.consumer.message import Message

CLOSE_WAIT_MAX = 5.0
"""Seconds to wait for the CLOSE_WAIT of nsqds, if ``close_timeout`` is not less."""


class Consumer:
    """Consumes one channel of one topic, for ``async with``, on asyncio and trio.

    Args:
        topic: the topic's name.
        channel: the channel's name.
        nsqd_tcp_addresses: ``host:port`` of each nsqd; it is dialled again until it is connected.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd; the nsqds that they list are dialled, too,
            while one of them lists them.
        on_backoff: called with each change of the backoff's state; it should be quick, and its exceptions are logged.
        stop_signals: signals that stop the consumer, such as ``[signal.SIGTERM, signal.SIGINT]``; a second one cancels
            its handlers. The program's own signal handlers are restored when the consumer is left.
        serializer: decodes bodies for ``message.value``, see ``nsqkit.client.serializers``; None returns the body.
        clock: the time; by default the real one.
        dial: connects to an address, in place of TCP.
        random: for delays and for picking connections; by default seeded by the system.
        options: see ``ConsumerOptions``.

    Attributes:
        options: as given.
        subscription, handlers: for ``BlockingConsumer``.

    Raises:
        OptionError: a name, an address or an option is not valid.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Sequence[str] = (),
        lookupd_http_addresses: Sequence[str] = (),
        on_backoff: Callable[[BackoffStats], None] | None = None,
        stop_signals: Collection[int] = (),
        serializer: Serializer[Any, Any] | None = None,
        clock: Clock | None = None,
        dial: Dial | None = None,
        random: Random | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self.options = make_options(ConsumerOptions, dict(options), elsewhere={"run(…)": HandlerOptions})
        check_tools(clock=clock, dial=dial, random=random, serializer=serializer, on_backoff=on_backoff)
        addresses = check_addresses(nsqd_tcp_addresses, "nsqd_tcp_addresses")
        if not addresses and not lookupd_http_addresses:
            raise OptionError(
                "nsqd_tcp_addresses and lookupd_http_addresses are empty; one of them must name an address"
            )
        self._clock = clock
        self._backoff_hook = on_backoff
        self._signals = StopSignals(check_signals(stop_signals), self._on_signal)
        self._log = ConsumerLog(topic, channel)
        random = random or Random()
        options_in_use = guard_callbacks(self.options, self._log.fields)
        self._core = ConsumerCore(options_in_use, random)
        self.subscription = Subscription(
            topic,
            channel,
            core=self._core,
            options=options_in_use,
            identity=self.options.identify_request(
                socket.gethostname(),
                msg_timeout_ms=round(self.options.msg_timeout * 1000),
                sample_rate=self.options.sample_rate,
            ),
            serializer=serializer,
            after=self._after,
        )
        self._connections = Connections(
            self.subscription,
            addresses,
            dial=dial,
            random=random,
            on_lost=self._on_lost,
            on_failure=self.stop,
        )
        self._discovery = Discovery(
            lookupd_http_addresses,
            topic=topic,
            on_change=self._on_discovered,
            on_failure=self._connections.fail,
            options=self.options,
            clock=clock,
            random=random,
            log=self._log.named("nsqkit.lookup"),
        )
        self._tasks: TaskScope | None = None
        self._timer: Timer | None = None
        self.handlers = ActiveHandlers(self.subscription, self._log, follows_concurrency="max_in_flight" not in options)

    # ---- three ways of receiving ---------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        self._warn_of_attempts()
        return self

    async def __anext__(self) -> Message:
        inbox = self._core.inbox
        while not inbox:
            arrival = self.subscription.arrival()
            if arrival is None:
                self.subscription.check_failure()
                raise StopAsyncIteration
            await arrival.wait()
        return inbox.popleft()

    def batches(self, max_messages: int | None = None, max_wait: Seconds = 0.0) -> Batches:
        """Return an iterator over lists of at least one message, each with a method ``finish`` for the whole list.

        This is the fastest way to receive: there is one await for each batch, and none for each message.

        Args:
            max_messages: the maximum for a batch; None is no limit.
            max_wait: seconds for which a batch that is not empty waits for ``max_messages``; 0 does not wait. The wait
                ends once ``is_starved``, because no more messages can arrive then.

        Raises:
            OptionError: a limit below 1, or a wait below 0 or without a limit.
        """
        self._warn_of_attempts()
        return Batches(self.subscription, max_messages, max_wait)

    async def run(
        self, handler: Callable[[Message], Awaitable[object] | None], **options: Unpack[HandlerKeywords]
    ) -> None:
        """Call ``handler`` with each message; finish the message when it returns, requeue it when it raises.

        If the handler has answered the message itself, nothing is done. If it is cancelled, the message is requeued at
        once. Returns when the consumer is stopped and the handlers that had begun have returned, or were cancelled
        after ``close_timeout``. ``nsqkit.consumer.handling`` lists all outcomes.

        Args:
            handler: an async function, of which ``concurrency`` run at a time, or a plain one, which is called in the
                event loop and should be quick, or with ``in_threads`` in worker threads.
            options: see ``HandlerOptions``: ``concurrency``, ``key``, ``in_threads``, ``auto_touch``,
                ``cancel_at_timeout``, ``giving_up``.

        Raises:
            OptionError: the handler or an option is not valid.
            Closed: outside of ``async with``.
            NSQError: with ``end_on_permanent_error``, the permanent error that has ended the consumer.
        """
        handling = self.handlers.make(
            handler, make_options(HandlerOptions, dict(options), elsewhere={"Consumer(…)": ConsumerOptions})
        )
        with self.handlers.serving(handling, handling.concurrency):
            await handling.run()
        self.subscription.check_failure()

    async def run_batches(
        self,
        handler: Callable[[Batch[Message]], Awaitable[object] | None],
        *,
        max_messages: int | None = None,
        max_wait: Seconds = 0.0,
        concurrency: int = 1,
        giving_up: GivingUp = discard,
    ) -> None:
        """Call ``handler`` with lists of messages: as ``run``, with one outcome for a list.

        Args:
            handler: an async function, or a plain one that is quick, of a list of at least one message.
            max_messages: as in ``batches``.
            max_wait: as in ``batches``.
            concurrency: lists that are handled at a time.
            giving_up: as in ``run``; a message that is given up is not in the list.

        Raises:
            OptionError: the handler or an option is not valid.
            Closed: outside of ``async with``.
        """
        single = self.handlers.make(handler, HandlerOptions(concurrency=concurrency, giving_up=giving_up))
        batches = Batches(self.subscription, max_messages, max_wait, raises=False)
        handling = BatchHandling(self.subscription, batches, handler, concurrency, single)
        with self.handlers.serving(single, concurrency * (max_messages or 1)):
            await handling.run()
        self.subscription.check_failure()

    def _warn_of_attempts(self) -> None:
        if self.options.max_attempts != attrs.fields(ConsumerOptions).max_attempts.default:
            self._log.attempts_not_limited(self.options.max_attempts)

    def _check_not_stopped(self) -> None:
        self.subscription.check_failure()
        if self._core.is_closing:
            raise Closed("the consumer is closed: it connects to no nsqd any more")

    # ---- methods for a running consumer ------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """True while some connection has at least 85 % of its RDY unanswered; a batch should then be handled."""
        return self._core.flow.is_starved

    @property
    def backoff(self) -> BackoffStats:
        """The state of backoff, its counter, and the seconds that are left of a wait."""
        return self._core.backoff_stats(self.subscription.now_ns())

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """The nsqds without a subscription, and the nsqlookupds that failed, each with its last error."""
        failed = {lookupd.name: lookupd.error for lookupd in self._discovery.lookupds if lookupd.error}
        return {**self._connections.unconnected, **failed}

    def stats(self) -> ConsumerStats:
        """Return the present statistics of the consumer."""
        return self._core.stats(self.subscription.now_ns(), self._connections.stats(), self._connections.left_out_count)

    async def wait_connected(self, timeout: Seconds | None = None) -> None:
        """Return when there is at least one nsqd, and all of them have accepted the subscription.

        Raises:
            NotConnected: not within ``timeout`` seconds (None for no limit), with the last error of each address.
            Closed: outside of ``async with``, or stopped meanwhile.
            NSQError: with ``end_on_permanent_error``, the permanent error that has ended the consumer.
        """
        seconds = take_timeout(timeout)
        with move_on_after(self.subscription.check_entered(), seconds) as scope:
            await self._connections.wait_complete(self._check_not_stopped)
        if scope.cancelled_caught:
            whom = " or ".join(self.unconnected) or "any nsqd, since the nsqlookupds list none,"
            raise not_connected(f"no connection to {whom} within {seconds:g} seconds", self.unconnected)

    async def finish_confirmed(self, messages: Iterable[Message]) -> Confirmation:
        """Finish messages, and return when nsqd has processed that; one round trip for each nsqd.

        nsqd does not answer FIN. So a FIN of id 0000000000000000 follows, which nsqd refuses, and logs as an error.

        Returns:
            The messages that are not finished, and those whose connection ended before nsqd's answer.

        Raises:
            OptionError: a value is not a message.
            Closed: outside of ``async with``.
        """
        self.subscription.check_entered()
        return await self._connections.wait_confirmed(self.subscription.finish_confirmed(messages))

    async def touch_confirmed(self, messages: Iterable[Message]) -> Confirmation:
        """Touch messages, and return when nsqd has processed that, as ``finish_confirmed``."""
        self.subscription.check_entered()
        return await self._connections.wait_confirmed(self.subscription.touch_confirmed(messages))

    def pause(self) -> None:
        """Set RDY to 0; messages that were delivered are still handled."""
        self._core.pause(self.subscription.now_ns())
        self._after()

    def resume(self) -> None:
        """End ``pause``."""
        self._core.resume(self.subscription.now_ns())
        self._after()

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """Change ``max_in_flight``.

        Raises:
            OptionError: the value is not valid for the option.
        """
        check_value(ConsumerOptions, "max_in_flight", max_in_flight)
        self.handlers.follows_concurrency = False
        self._core.set_max_in_flight(max_in_flight, self.subscription.now_ns())
        self._after()

    def connect_to_nsqd(self, address: str) -> None:
        """Consume from another nsqd; it is dialled again until it is connected. A known address changes nothing.

        Args:
            address: its ``host:port``.

        Raises:
            OptionError: the address is not valid.
            Closed: the consumer was stopped.
        """
        self._check_not_stopped()
        (address,) = check_addresses([address], "address")
        self._connections.add(address)

    def disconnect_from_nsqd(self, address: str) -> None:
        """Stop consuming from an nsqd.

        Messages that no handler has begun are requeued at once; the others can be answered for ``close_timeout``. An
        nsqd that nsqlookupds list is connected again after the next poll.

        Args:
            address: its ``host:port``, as given or discovered.

        Raises:
            OptionError: the consumer has no such nsqd.
        """
        if not isinstance(address, str) or not self._connections.remove(address):
            raise OptionError(f"address is {address!r}, which is not an nsqd of this consumer")
        self._discovery.forget(address)
        self._after()

    def connect_to_lookupd(self, address: str) -> None:
        """Poll another nsqlookupd, starting now. A known address changes nothing.

        Args:
            address: its ``host:port`` or URL.

        Raises:
            OptionError: the address is not valid.
            Closed: the consumer was stopped.
        """
        self._check_not_stopped()
        self._discovery.add_lookupd(address)

    def disconnect_from_lookupd(self, address: str) -> None:
        """Stop polling an nsqlookupd.

        A connection to an nsqd that only it has listed lasts until it is lost.

        Args:
            address: its ``host:port`` or URL.

        Raises:
            OptionError: the consumer has no such nsqlookupd.
        """
        self._discovery.remove_lookupd(address)

    def stop(self, timeout: Seconds | None = None) -> None:
        """Receive no more messages and requeue those that no handler has begun; ``run`` and ``async for`` end.

        The other messages can still be answered; each connection stays open until all of them are. After the timeout,
        handlers are cancelled, except in threads, where that is impossible, and messages without an answer are
        requeued. Handlers in threads may call this, too.

        Args:
            timeout: in seconds; None is ``close_timeout``. Of several calls the earliest end counts.

        Raises:
            OptionError: the timeout is negative or not a duration.
        """
        seconds = take_timeout(timeout)
        if seconds is None:
            seconds = self.options.close_timeout
        if self._tasks is not None and self._call_soon.is_needed:  # by a handler in a thread
            self._call_soon(lambda: self.stop(seconds))
            return
        now_ns = self.subscription.now_ns()
        self._core.close(now_ns, now_ns + round(seconds * NS_PER_S))
        self._connections.stop()
        self.subscription.arrived.set()
        self._after()

    # ---- start and stop ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Consumer:
        if self._core.is_closing or self._tasks is not None:
            raise Closed("a consumer is entered once; make another one")
        self._signals.__enter__()
        self._call_soon = LoopCaller()
        clock = self.subscription.clock = self._clock or LoopClock()
        self._timer = Timer(self._core, clock, after=lambda _: self._after())
        self._tasks = TaskScope()
        await self._tasks.start()
        self._tasks.start_soon(self._timer.run)
        self._connections.start(self._tasks, clock)
        self._tasks.start_soon(self._discovery.run)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Stop, wait for the handlers and for each CLOSE_WAIT, and close; no task is left running."""
        assert self._tasks is not None
        try:
            self.stop()
            await self._drain()
        finally:
            # A second Ctrl-C cancels an asyncio task in spite of a shield.
            tasks, self._tasks = self._tasks, None
            self._signals.__exit__(exc_type, exc, traceback)
            try:
                suppresses = await tasks.end(exc_type, exc, traceback)
            finally:
                self.subscription.clock = None  # its event loop may end
        return suppresses

    async def _drain(self) -> None:
        """Wait for handlers up to their time limit, requeue messages without an answer, and wait for CLOSE_WAIT."""
        seconds = min(self.options.close_timeout, CLOSE_WAIT_MAX)
        with anyio.CancelScope(shield=True):
            await self.handlers.wait_ended(seconds)
            self._core.requeue_all()
            self._after()
            with move_on_after(self.subscription.check_entered(), seconds):
                await self._connections.wait_gone()

    # ---- within --------------------------------------------------------------------------------------------------

    def _on_discovered(self, come: list[str], gone: list[str]) -> None:
        self._connections.set_listed(self._discovery.addresses)
        self._after()

    def _on_lost(self) -> None:
        if not self._core.is_closing:
            self._discovery.wake()  # its nsqd may have moved

    def _on_backoff(self, backoff: BackoffStats) -> None:
        self._log.backoff(backoff)
        if self._backoff_hook is not None:
            try:
                self._backoff_hook(backoff)
            except Exception as error:
                self._log.callback_failed("on_backoff", error)

    def _on_signal(self, is_first: bool) -> None:
        """Hand a signal to the event loop; called between any two bytecodes of the main thread."""

        def act() -> None:
            self._signals.is_handled = True
            self.stop(None if is_first else 0)

        self._call_soon(act)

    def _after(self) -> None:
        """Act on the changes in the core, once after each call of it."""
        core = self._core
        if core.inbox:
            self.subscription.arrived.set()
        if not core.has_changes:
            return
        core.has_changes = False
        if core.has_lost:
            core.has_lost = False
            self.handlers.check()
        for session in core.take_output():
            session.connection.wake()
        for backoff in core.events():
            self._on_backoff(backoff)
        if core.extended_count and "messages_wait" not in self._log.warned:
            self._warn_of_waiting()
        if self._timer is not None:
            self._timer.check()

    def _warn_of_waiting(self) -> None:
        core = self._core
        timeout_ns = min((session.msg_timeout_ns for session in core.sessions), default=0)
        waiting = sum(map(len, core.queues))
        self._log.messages_wait(core.flow.max_in_flight, timeout_ns / NS_PER_S, waiting, core.counts.finished)
