"""Messages in batches.

A batch waits for more messages only while more can come. It is returned when it is full, after ``max_wait``, when the
consumer is starved (nsqd sends nothing until something is answered), and when the consumer stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from nsqkit.clock import move_on_after
from nsqkit.errors import OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.options.durations import Seconds

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.subscription import Subscription

M = TypeVar("M")


class Batch(list[M]):
    """A list of messages that were received together; ``finish_all`` finishes those that are not answered."""

    __slots__ = ("_finish_all",)

    def __init__(self, messages: Iterable[M], finish_all: Callable[[list[M]], object]) -> None:
        super().__init__(messages)
        self._finish_all = finish_all

    def finish(self) -> None:
        """Finish all of them with one call, which costs less than one call for each.

        Messages that were answered before, have timed out or have lost their connection are left alone.
        """
        self._finish_all(self)


class Batches:
    """The iterator of ``Consumer.batches``.

    Args:
        subscription: of the consumer.
        max_messages: how many messages a batch has at most; None is no limit.
        max_wait: seconds for which a batch that is not empty waits for ``max_messages``.
        raises: whether the error that has ended the consumer, if there is one, is raised at the end.

    Raises:
        OptionError: a limit below 1, or a wait below 0 or without a limit.
    """

    def __init__(
        self, subscription: Subscription, max_messages: int | None, max_wait: Seconds, *, raises: bool = True
    ) -> None:
        is_whole = isinstance(max_messages, int) and not isinstance(max_messages, bool)
        if max_messages is not None and (not is_whole or max_messages < 1):
            raise OptionError(f"max_messages is {max_messages!r}; allowed is None, or a whole number of at least 1")
        max_wait = take_seconds("max_wait", max_wait)
        if max_wait and max_messages is None:
            raise OptionError(f"max_wait is {max_wait!r}; allowed is 0 where max_messages is None")
        self._subscription = subscription
        self._inbox = subscription.core.inbox
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._raises = raises

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch[Message]:
        while True:
            while not self._inbox:
                arrival = self._subscription.arrival()
                if arrival is None:
                    if self._raises:
                        self._subscription.check_failure()
                    raise StopAsyncIteration
                await arrival.wait()
            if self._max_wait:
                await self._fill()
            if self._inbox:  # else its messages were requeued, or another receiver has taken them
                return self.take()

    async def _fill(self) -> None:
        """Wait until the inbox has ``max_messages``, or no more can come in time."""
        subscription = self._subscription
        assert self._max_messages is not None
        with move_on_after(subscription.check_entered(), self._max_wait):
            while len(self._inbox) < self._max_messages and not subscription.core.flow.is_starved:
                arrival = subscription.arrival()
                if arrival is None:
                    return
                await arrival.wait()

    def take(self) -> Batch[Message]:
        """Return the messages that wait, up to ``max_messages``, perhaps none."""
        inbox, limit = self._inbox, self._max_messages
        finish_all = self._subscription.finish_all
        if limit is None or len(inbox) <= limit:
            batch = Batch(inbox, finish_all)
            inbox.clear()
            return batch
        return Batch((inbox.popleft() for _ in range(limit)), finish_all)
