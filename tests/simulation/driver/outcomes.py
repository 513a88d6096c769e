"""What becomes of the messages of a consumer's handlers: no handler begins one that was taken back, and each has its
answer, which is sent, when its handler or ``giving_up`` has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import anyio

from tests.simulation.broken import Broken
from tests.simulation.driver.giving_up import Failure
from tests.simulation.driver.pace import pass_time
from tests.simulation.flow_rules import check_waiting

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.subscription import Subscription
    from tests.simulation.driver.wire import Wire
    from tests.simulation.driver.world import World

ANSWER_MAX: Final = 0.1
"""Seconds from the end of a handler until the answer to its message is certainly sent, or it has timed out."""


class Outcomes:
    """The messages of one consumer whose handlers nsqkit calls.

    Args:
        world: the world.
        name: of the consumer.
        find: returns the connection that has a message without an answer; None if that is not known.

    Attributes:
        has_key_errors: the function for the keys of messages may raise, which counts as a failure of the handler.
        is_batched: a handler gets several messages.
        attempts_max: of the consumer; 0 for no limit.
        ended_at: when the last handler, or ``giving_up``, has ended.
    """

    has_key_errors = False
    is_batched = False
    attempts_max = 0
    ended_at = 0.0

    def __init__(self, world: World, name: str, find: Callable[[Message], Wire | None]) -> None:
        self._world = world
        self._name = name
        self._find = find
        self._giving_up: list[Message] = []
        self._begun: dict[tuple[str, bytes], int] = {}  # whose last attempt has begun: the number of the newest one
        self._late: set[tuple[str, bytes]] = set()  # whose last attempt took too long
        self._failed: set[tuple[str, bytes]] = set()  # whose last attempt has failed, and that were not given up yet
        self._given_up: set[tuple[str, bytes]] = set()  # if its FIN is lost, a handler may begin it once more
        self._leave = anyio.Event()

    def begin_life(self, leave: anyio.Event) -> None:
        """Forget the messages of an earlier consumer; the next one runs until ``leave`` is set."""
        self._begun.clear()
        self._late.clear()
        self._failed.clear()
        self._given_up.clear()
        self._leave = leave

    def receive(self, message: Message) -> None:
        """Record that a message is received without ``run``, where attempts have no limit."""
        key = message.nsqd_address, message.id
        self._late.discard(key)
        self._failed.discard(key)

    def begin(self, message: Message, *, is_new: bool) -> None:
        """Check that a message whose handler begins was not taken back, if it ``is_new``."""
        key = message.nsqd_address, message.id
        if self._is_last(message):
            self._begun[key] = message.attempts
        else:  # a broker that was killed has the attempts of before, and the message may be finished now
            self._late.discard(key)
            self._failed.discard(key)
        self._given_up.discard(key)
        if (key in self._failed or (key in self._late and is_new)) and message.attempts > self.attempts_max:
            text = f"a handler of {self._name} begins {message.body[:60]!r}, whose last attempt has ended"
            raise self._world.failed(Broken(8, text))
        subscription = cast("Subscription", message.session.subscription)
        try:
            check_waiting(self._name, subscription.core, subscription.now_ns())
        except Broken as broken:
            raise self._world.failed(broken) from None
        if message.is_answered and is_new:
            text = (
                f"a handler of {self._name} begins {message.body[:60]!r}, which was requeued, has timed out or is lost"
            )
            raise self._world.failed(Broken(5, text))

    def check_held(self, message: Message, begun: float) -> None:
        """Check that a message has not timed out since a time, as it was touched.

        Raises:
            Broken: it has.
        """
        world, node = self._world, message.nsqd_address.partition(":")[0]
        is_calm = not world.has_link_faults and world.history.is_calm([node], begun)
        if message.is_answered and is_calm and not self._leave.is_set():
            text = f"{message.body[:60]!r} has timed out while its handler or giving_up ran"
            raise world.failed(Broken(5, text))

    def failure(self, message: Message) -> Failure:
        """Return the error of a handler that fails; its message is given up if that was the last attempt."""
        if self._is_last(message) and not message.is_answered:
            self._failed.add((message.nsqd_address, message.id))
        return Failure(message.body)

    def succeed(self, message: Message) -> None:
        """Record that a handler returns: if that is in time, a handler begins the next delivery, too."""
        if self._is_last(message) and not message.is_answered:
            self._begun.pop((message.nsqd_address, message.id), None)

    def end_late(self, message: Message) -> None:
        """Record that a handler has ended in which the message timed out, or lost its connection."""
        key = message.nsqd_address, message.id
        is_newest = self._begun.get(key) == message.attempts  # a later one may have finished the message
        if self._is_last(message) and key not in self._given_up and is_newest:
            self._late.add(key)

    def forget(self, message: Message) -> None:
        """Record that the handler was cancelled, and not because of the message: another one may begin it."""
        if self._is_last(message):  # a broker that was killed may have the number of attempts of before
            self._begun.pop((message.nsqd_address, message.id), None)

    def _is_last(self, message: Message) -> bool:
        return message.attempts >= self.attempts_max > 0

    def end(self, message: Message) -> None:
        """Record that a handler, or ``giving_up``, has ended in any way."""
        self.ended_at = self._world.loop.time()
        wire = self._find(message) if message.time_left else None  # the connection may have its next delivery
        due = None if wire is None else wire.held[message.id]
        self._world.tasks.start_soon(self._check, message, wire, due)

    async def _check(self, message: Message, wire: Wire | None, due: float | None) -> None:
        await pass_time(ANSWER_MAX)
        if self._is_given_up(message):
            while self._is_given_up(message) and not message.is_answered:
                await pass_time(ANSWER_MAX)
            await pass_time(ANSWER_MAX)
        if not message.is_answered:
            raise Broken(27, f"{self._name} has no answer for {message.body[:60]!r}, whose handler has ended")
        # A message that is delivered again has another time.
        if wire is not None and wire.held.get(message.id) == due and self._find(message) is wire:
            raise Broken(27, f"{self._name} has not sent the answer for {message.body[:60]!r}")

    def _is_given_up(self, message: Message) -> bool:
        """Whether ``giving_up`` runs for a message; those of a batch are given up one after the other."""
        return bool(self._giving_up) if self.is_batched else message in self._giving_up

    def give_up(self, message: Message) -> None:
        """Record that ``giving_up`` is called."""
        key = message.nsqd_address, message.id
        self._late.discard(key)
        self._failed.discard(key)
        self._given_up.add(key)

    @contextmanager
    def giving_up(self, message: Message) -> Iterator[None]:
        """Enclose the call of ``giving_up`` for a message."""
        if message.is_answered:
            raise self._world.failed(Broken(1, f"{self._name} gives up {message.body[:60]!r}, which has an answer"))
        key = message.nsqd_address, message.id
        if key not in self._begun and not self.has_key_errors:
            text = f"{self._name} gives up {message.body[:60]!r}, whose last attempt has not failed or taken too long"
            raise self._world.failed(Broken(1, text))
        self.give_up(message)
        self._giving_up.append(message)
        try:
            yield
        finally:
            self._giving_up.remove(message)
            self.end(message)
