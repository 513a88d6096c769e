"""The consumer without ``await``: the same methods, for any number of threads.

The rule it guards: there is one consumer, and it lives in the event-loop thread (``nsqkit.portal``), which answers
heartbeats whatever the threads do. What becomes of a message is decided where it is for ``Consumer``, in ``handling``.

How to read it: the ways of receiving, then what can be asked and changed while it runs; how messages come to a thread
and answers from it is in ``intake``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, cast

import anyio.to_thread
import attrs

from nsqkit.client.options import make_options
from nsqkit.consumer.batches import Batch, Batches
from nsqkit.consumer.consumer import Consumer
from nsqkit.consumer.giving_up import GivingUp, discard
from nsqkit.consumer.handler_options import HandlerKeywords, HandlerOptions
from nsqkit.consumer.intake import Intake
from nsqkit.consumer.options import ConsumerKeywords
from nsqkit.consumer.thread_message import ThreadMessage
from nsqkit.errors import OptionError
from nsqkit.portal import Blocking

if TYPE_CHECKING:
    from nsqkit.consumer.blocking_message import BlockingMessage
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.stats import BackoffStats, ConsumerStats

T = TypeVar("T")


class BlockingHandlerKeywords(TypedDict, total=False):
    """The options of ``HandlerOptions`` as keyword arguments, with functions that are plain."""

    concurrency: int
    key: Callable[[Message], Hashable] | None
    in_threads: bool
    auto_touch: bool
    giving_up: Callable[[Any], object]


class BlockingConsumer(Blocking[Consumer]):
    """Consumes one channel of one topic from threads, for ``with``, or from ``open`` to ``close``.

    It belongs to the process that has opened it. One that was forked meanwhile gets ``Closed``, and can open it, too.

    Args:
        topic: as for ``Consumer``; so are all others.
        channel: the channel.
        nsqd_tcp_addresses: ``host:port`` of each nsqd.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        on_backoff: called in the event-loop thread with each change of the backoff's state.
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
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        def make() -> Consumer:
            return Consumer(
                topic,
                channel,
                nsqd_tcp_addresses=nsqd_tcp_addresses,
                lookupd_http_addresses=lookupd_http_addresses,
                on_backoff=on_backoff,
                **options,
            )

        super().__init__(make, "consumer")
        self._intake: Intake | None = None

    def open(self) -> Self:
        """Begin; connections are made meanwhile.

        Raises:
            Closed: it is open already.
        """
        super().open()
        self._intake = Intake(self._opened())
        return self

    def close(self) -> None:
        """Give everything back that is not answered, wait for the brokers, close; nothing is left running.

        Threads that wait for messages get none. Does nothing if it is closed, or was opened in another process.
        """
        stay = self._stay
        try:
            if stay is not None and stay.is_here and self._intake is not None:
                stay.ask(self._intake.stop)
        finally:
            super().close()

    # ---- ways of receiving ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[BlockingMessage]:
        """Iterate over messages, until the consumer is stopped; threads that do so share them."""
        intake = self._entered()
        while (message := intake.next()) is not None:
            yield message

    def receive(self, timeout: float | None = None) -> BlockingMessage | None:
        """Return the next message.

        Args:
            timeout: seconds to wait for it; None waits for as long as it takes.

        Returns:
            The message; None if there was none in time, or the consumer was stopped.

        Raises:
            Closed: while it is not open in this process.
        """
        return self._entered().next(timeout)

    def batches(
        self, max_messages: int | None = None, max_wait: float = 0.0
    ) -> Iterator[Batch[BlockingMessage]]:
        """Return an iterator over lists of at least one message, until the consumer is stopped.

        Each has a method ``finish`` for all of it.

        Args:
            max_messages: how many a batch has at most; None is no limit.
            max_wait: seconds for which a batch that has begun waits for ``max_messages``; as in ``Consumer.batches``.

        Raises:
            OptionError: a limit below 1, or a wait below 0 or without a limit.
            Closed: while it is not open in this process.
        """
        take = self._taking(max_messages, max_wait, None)
        return iter(take, [])  # an empty batch is the end

    def receive_batch(
        self, max_messages: int | None = None, max_wait: float = 0.0, *, timeout: float | None = None
    ) -> Batch[BlockingMessage]:
        """Return the next batch.

        Args:
            max_messages: as in ``batches``.
            max_wait: as in ``batches``.
            timeout: seconds to wait for it; None waits for as long as it takes.

        Returns:
            The messages; none of them if there were none in time, or the consumer was stopped.

        Raises:
            NSQError: as ``batches``.
        """
        return self._taking(max_messages, max_wait, timeout)()

    def run(self, handler: Callable[[Any], object], **options: Unpack[BlockingHandlerKeywords]) -> None:
        """Call ``handler`` with each message; finish the message when it returns, requeue it when it raises.

        The handler is called in this thread. With options that it takes more than one thread to fulfil, worker threads
        call it, and this one waits. Returns when the consumer is stopped and the handlers that had begun have
        returned. What becomes of a message is told in ``nsqkit.consumer.handling``; where the handler is interrupted,
        its message is given back.

        Args:
            handler: a plain function of a message.
            options: see ``HandlerOptions``. ``giving_up`` is a plain function as well and is called in a worker thread;
                ``in_threads`` goes without saying if there are others than it.

        Raises:
            OptionError: an option that cannot be used, or a handler that is async.
            Closed: while it is not open in this process.
        """
        if iscoroutinefunction(handler):
            raise OptionError(f"handler is {handler!r}, which is async; allowed is a plain function")
        stay = self._opened()
        given = make_options(HandlerOptions, dict(options))
        giving_up = in_thread(given.giving_up)
        if given == HandlerOptions(giving_up=given.giving_up):
            self._work(handler, attrs.evolve(given, giving_up=giving_up))
            return
        threaded = cast("HandlerKeywords", {**options, "giving_up": giving_up, "in_threads": True})
        stay.run(partial(stay.client.run, cast("Callable[[Message], None]", handler), **threaded))

    # ---- while it runs -------------------------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """As ``Consumer.is_starved``."""
        return self._ask(lambda consumer: consumer.is_starved)

    @property
    def backoff(self) -> BackoffStats:
        """As ``Consumer.backoff``."""
        return self._ask(lambda consumer: consumer.backoff)

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """As ``Consumer.unconnected``."""
        return self._ask(lambda consumer: consumer.unconnected)

    def stats(self) -> ConsumerStats:
        """As ``Consumer.stats``."""
        return self._ask(Consumer.stats)

    def wait_connected(self) -> None:
        """As ``Consumer.wait_connected``."""
        stay = self._opened()
        stay.run(stay.client.wait_connected)

    def pause(self) -> None:
        """As ``Consumer.pause``."""
        self._ask(Consumer.pause)

    def resume(self) -> None:
        """As ``Consumer.resume``."""
        self._ask(Consumer.resume)

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """As ``Consumer.change_max_in_flight``."""
        self._ask(lambda consumer: consumer.change_max_in_flight(max_in_flight))

    def connect_to_nsqd(self, address: str) -> None:
        """As ``Consumer.connect_to_nsqd``."""
        self._ask(lambda consumer: consumer.connect_to_nsqd(address))

    def disconnect_from_nsqd(self, address: str) -> None:
        """As ``Consumer.disconnect_from_nsqd``."""
        self._ask(lambda consumer: consumer.disconnect_from_nsqd(address))

    def connect_to_lookupd(self, address: str) -> None:
        """As ``Consumer.connect_to_lookupd``."""
        self._ask(lambda consumer: consumer.connect_to_lookupd(address))

    def disconnect_from_lookupd(self, address: str) -> None:
        """As ``Consumer.disconnect_from_lookupd``."""
        self._ask(lambda consumer: consumer.disconnect_from_lookupd(address))

    def stop(self) -> None:
        """Ask for no more messages and give back what nobody has begun with; ``run`` and loops over messages end.

        It may be called by any thread, handlers among them, and by signal handlers of the main thread.
        """
        self._opened().put(self._entered().stop)

    # ---- within --------------------------------------------------------------------------------------------------

    def _entered(self) -> Intake:
        self._opened().check()
        assert self._intake is not None
        return self._intake

    def _ask(self, look: Callable[[Consumer], T]) -> T:
        stay = self._opened()
        return stay.ask(partial(look, stay.client))

    def _taking(
        self, max_messages: int | None, max_wait: float, timeout: float | None
    ) -> Callable[[], Batch[BlockingMessage]]:
        intake, batches = self._entered(), Batches(self._opened().client, max_messages, max_wait)
        if max_wait:
            return partial(intake.gather, batches, timeout)
        return partial(intake.take, max_messages, timeout)

    def _work(self, handler: Callable[[Any], object], options: HandlerOptions) -> None:
        """Handle one message after the other in this thread."""
        stay, intake = self._opened(), self._entered()
        handling = stay.ask(partial(stay.client._handling, handler, options))
        while (message := intake.next()) is not None:
            if message.attempts > handling.attempts_max:
                stay.run(partial(handling.give_up, message.delivery))
                continue
            try:
                handler(message)
            except Exception as error:
                intake.tell(partial(handling.fail, message.delivery, error))
            except BaseException:
                intake.give_back(message.delivery)
                raise
            else:
                if not message.is_answered:
                    message.finish()


def in_thread(giving_up: Callable[[Any], object]) -> GivingUp:
    """Return what calls a function of a message, from the event loop, in a worker thread."""
    if giving_up is discard:
        return discard
    if iscoroutinefunction(giving_up):
        raise OptionError(f"giving_up is {giving_up!r}, which is async; allowed is a plain function")

    async def give_up(message: Message) -> None:
        await anyio.to_thread.run_sync(giving_up, ThreadMessage(message))

    return give_up
