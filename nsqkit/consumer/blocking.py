"""The consumer without ``await``: the same methods, for any number of threads.

There is one ``Consumer``, in the event-loop thread (``nsqkit.loop_thread``), which answers heartbeats while threads are
busy. The outcomes of handlers are those of ``nsqkit.consumer.handling``. ``ThreadReceiver`` hands messages to threads
and takes their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

import attrs

from nsqkit.consumer.batches import Batch, Batches
from nsqkit.consumer.consumer import Consumer
from nsqkit.consumer.dead_letter import discard
from nsqkit.consumer.handler import call_plain, check_handler
from nsqkit.consumer.handler_options import HandlerKeywords, HandlerOptions
from nsqkit.consumer.options import ConsumerKeywords, ConsumerOptions
from nsqkit.consumer.policy import policy_in_thread
from nsqkit.consumer.stop_signals import StopSignals, check_signals
from nsqkit.consumer.thread_message import ThreadMessage
from nsqkit.consumer.thread_receiver import ThreadReceiver
from nsqkit.errors import Closed
from nsqkit.loop_thread import BlockingClient, forward, forward_async
from nsqkit.options.checks import make_options, take_timeout
from nsqkit.options.durations import Seconds

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer
    from nsqkit.clock import Clock
    from nsqkit.consumer.blocking_message import BlockingMessage
    from nsqkit.consumer.handling import Handling
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.stats import BackoffStats, ConsumerStats


class BlockingHandlerKeywords(TypedDict, total=False):
    """The options of ``HandlerOptions`` as keyword arguments, with plain functions."""

    concurrency: int
    key: Callable[[Message], Hashable] | None
    in_threads: bool
    auto_touch: bool
    giving_up: Callable[..., object]


class BlockingConsumer(BlockingClient[Consumer]):
    """Consumes one channel of one topic from threads, for ``with``, or from ``open`` to ``close``.

    It belongs to the process that has opened it. A process forked meanwhile gets ``Closed``, and can open it, too.
    Its methods raise ``Closed`` while it is not open in this process.

    Args:
        topic: as for ``Consumer``, like the other arguments.
        channel: the channel's name.
        nsqd_tcp_addresses: ``host:port`` of each nsqd.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        on_backoff: called in the event-loop thread with each change of the backoff's state.
        stop_signals: as for ``Consumer``; a second signal also interrupts the main thread. It is opened and closed in
            the main thread then.
        serializer: decodes bodies for ``message.value``, in the thread that reads it.
        clock: the time of the consumer; by default the real one. The timeout of ``receive`` is real time.
        options: see ``ConsumerOptions``.

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
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        def make() -> Consumer:
            return Consumer(
                topic,
                channel,
                nsqd_tcp_addresses=nsqd_tcp_addresses,
                lookupd_http_addresses=lookupd_http_addresses,
                on_backoff=on_backoff,
                serializer=serializer,
                clock=clock,
                **options,
            )

        super().__init__(make, "consumer", interrupt=lambda consumer: consumer.stop(0))
        self._stop_signals = check_signals(stop_signals)
        self._signals = ExitStack()
        self._receiver: ThreadReceiver | None = None

    def open(self) -> Self:
        """Start the consumer, without waiting for connections. Raises ``Closed`` if it is open already."""
        signals = StopSignals(self._stop_signals, self._on_signal)
        with ExitStack() as stack:
            stack.enter_context(signals)
            super().open()
            self._receiver = ThreadReceiver(self._opened())
            self._signals = stack.pop_all()
        return self

    def close(self) -> None:
        """Stop, wait for handlers of ``run`` up to ``close_timeout``, requeue unanswered messages, and close.

        Threads that wait for messages get none. Does nothing if it is closed, or was opened in another process. If
        Ctrl-C interrupts the wait, unanswered messages are requeued at once.
        """
        loop_client = self._loop_client
        if loop_client is None or not loop_client.is_here:
            return
        with self._signals:
            try:
                if self._receiver is not None:
                    with suppress(Closed):  # the event-loop thread has ended
                        loop_client.ask(self._receiver.stop)
            except BaseException:
                if self._receiver is not None:
                    loop_client.put(partial(self._receiver.stop, 0))
                raise
            finally:
                super().close()

    # ---- ways of receiving ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[BlockingMessage]:
        """Iterate over messages until the consumer is stopped; several threads share them."""
        receiver = self._entered()
        while (message := receiver.next()) is not None:
            yield message

    def receive(self, timeout: Seconds | None = None) -> BlockingMessage | None:
        """Return the next message.

        Args:
            timeout: seconds to wait for it; None is no limit.

        Returns:
            The message; None after the timeout, or when the consumer is stopped.

        Raises:
            Closed: it is not open in this process.
        """
        return self._entered().next(take_timeout(timeout))

    def batches(self, max_messages: int | None = None, max_wait: Seconds = 0.0) -> Iterator[Batch[BlockingMessage]]:
        """Return an iterator over lists of at least one message, until the consumer is stopped.

        Each has a method ``finish`` for the whole list.

        The arguments are those of ``Consumer.batches``.

        Raises:
            OptionError: a limit below 1, or a wait below 0 or without a limit.
            Closed: it is not open in this process.
        """
        take = self._receive_call(max_messages, max_wait, None)
        return iter(take, [])  # an empty batch is the end

    def receive_batch(
        self, max_messages: int | None = None, max_wait: Seconds = 0.0, *, timeout: Seconds | None = None
    ) -> Batch[BlockingMessage]:
        """Return the next batch.

        Args:
            max_messages: as in ``batches``.
            max_wait: as in ``batches``.
            timeout: seconds to wait for it; None is no limit.

        Returns:
            The messages, after the timeout those that have arrived; an empty batch if there are none then, or when the
            consumer is stopped.

        Raises:
            NSQError: as ``batches``.
        """
        return self._receive_call(max_messages, max_wait, timeout)()

    def run(self, handler: Callable[[Any], object], **options: Unpack[BlockingHandlerKeywords]) -> None:
        """Call ``handler`` with each message; finish the message when it returns, requeue it when it raises.

        The handler is called in this thread. With any option but ``giving_up``, it is called in worker threads, and
        this thread waits. Returns when the consumer is stopped and the handlers that had begun have returned.
        ``nsqkit.consumer.handling`` lists all outcomes. If Ctrl-C interrupts the handler, its message is requeued;
        handlers in worker threads continue for up to ``close_timeout`` while the consumer is closed. If a handler
        raises ``SystemExit``, here or in a worker thread, this method raises it.

        Args:
            handler: a plain function of a message.
            options: see ``HandlerOptions``. ``giving_up`` is a plain function, too, and is called in a worker thread.

        Raises:
            OptionError: an option is not valid, or the handler is async or a generator function.
            Closed: it is not open in this process.
        """
        check_handler(handler, can_await=False)
        loop_client = self._opened()
        given = make_options(HandlerOptions, dict(options), elsewhere={"BlockingConsumer(…)": ConsumerOptions})
        giving_up = given.giving_up
        if giving_up is not discard:
            giving_up = policy_in_thread(giving_up, ThreadMessage)
        if given == HandlerOptions(giving_up=given.giving_up):
            self._work(handler, attrs.evolve(given, giving_up=giving_up))
            return
        threaded = cast("HandlerKeywords", {**options, "giving_up": giving_up, "in_threads": True})
        receiver = self._entered()

        async def run() -> None:
            with receiver.using_inbox():
                await loop_client.client.run(cast("Callable[[Message], None]", handler), **threaded)

        loop_client.run(run)

    # ---- methods for a running consumer ------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """As ``Consumer.is_starved``."""
        return self._look(lambda consumer: consumer.is_starved)

    @property
    def backoff(self) -> BackoffStats:
        """As ``Consumer.backoff``."""
        return self._look(lambda consumer: consumer.backoff)

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """As ``Consumer.unconnected``."""
        return self._look(lambda consumer: consumer.unconnected)

    def stats(self) -> ConsumerStats:
        """As ``Consumer.stats``; once it is closed, its last statistics."""
        return self._look(Consumer.stats)

    wait_connected = forward_async(Consumer.wait_connected)
    pause = forward(Consumer.pause)
    resume = forward(Consumer.resume)
    change_max_in_flight = forward(Consumer.change_max_in_flight)
    connect_to_nsqd = forward(Consumer.connect_to_nsqd)
    disconnect_from_nsqd = forward(Consumer.disconnect_from_nsqd)
    connect_to_lookupd = forward(Consumer.connect_to_lookupd)
    disconnect_from_lookupd = forward(Consumer.disconnect_from_lookupd)

    def stop(self, timeout: Seconds | None = None) -> None:
        """Receive no more messages and requeue those that no handler has begun; ``run`` and loops over messages end.

        Any thread may call it, including those of handlers, and so may signal handlers of the main thread.

        Args:
            timeout: as for ``Consumer.stop``. Threads cannot be cancelled, but their messages are requeued.

        Raises:
            OptionError: as for ``Consumer.stop``.
            Closed: it is not open in this process.
        """
        self._opened().put(partial(self._entered().stop, take_timeout(timeout)))

    def _on_signal(self, is_first: bool) -> None:
        if self._loop_client is not None and self._receiver is not None:
            with suppress(Closed):
                self._loop_client.put(partial(self._receiver.stop, None if is_first else 0))

    def _entered(self) -> ThreadReceiver:
        self._opened().check()
        assert self._receiver is not None
        return self._receiver

    def _receive_call(
        self, max_messages: int | None, max_wait: Seconds, timeout: Seconds | None
    ) -> Callable[[], Batch[BlockingMessage]]:
        receiver = self._entered()
        batches = Batches(self._opened().client.subscription, max_messages, max_wait)
        seconds = take_timeout(timeout)
        if max_wait:
            return partial(receiver.take_full, batches, seconds)
        return partial(receiver.take, max_messages, seconds)

    def _work(self, handler: Callable[[Any], object], options: HandlerOptions) -> None:
        """Handle one message after the other in this thread."""
        loop_client, receiver = self._opened(), self._entered()
        begun: list[Handling] = []  # filled in the event loop, also if this thread is interrupted meanwhile
        try:
            handling = loop_client.ask(partial(self._begin, handler, options, begun))
            while (message := receiver.next()) is not None:
                if message.attempts >= handling.attempts_max:
                    self._work_on_last(handling, handler, message)
                    continue
                try:
                    call_plain(handler, message)
                except Exception as error:
                    receiver.call_soon(partial(handling.requeue, message.delivery, error))
                except BaseException:
                    receiver.requeue_now(message.delivery)
                    raise
                else:
                    if not message.is_answered:
                        message.finish()
        finally:
            receiver.call_soon(partial(self._end, begun))

    def _begin(self, handler: Callable[[Any], object], options: HandlerOptions, begun: list[Handling]) -> Handling:
        handlers = self._opened().client.handlers
        handling = handlers.make(handler, options)
        handlers.add(handling, 1)
        begun.append(handling)
        return handling

    def _end(self, begun: list[Handling]) -> None:
        for handling in begun:
            self._opened().client.handlers.remove(handling)

    def _work_on_last(self, handling: Handling, handler: Callable[[Any], object], message: BlockingMessage) -> None:
        """Handle a message at its last attempt, which is recorded in the event loop with its result."""
        loop_client, receiver, delivery = self._opened(), self._entered(), message.delivery
        last_attempts = loop_client.client.subscription.core.last_attempts
        if not loop_client.ask(partial(last_attempts.begin, delivery)):
            loop_client.run(lambda: handling.give_up(delivery, last_attempts.error(delivery)))
            return
        try:
            call_plain(handler, message)
        except Exception as error:
            loop_client.run(partial(handling.fail, delivery, error))
        except BaseException:
            receiver.call_soon(partial(last_attempts.forget, delivery))
            receiver.requeue_now(delivery)
            raise
        else:
            if not message.is_answered:
                receiver.call_soon(partial(handling.finish, delivery))
