"""The dead letters of a consumer: a ``DeadLetter`` with a producer of its own, and the messages of their topic.

The producer is a host of its own, so that its bytes are not taken for those of the consumer. The faults of the
consumer's links exist on its links, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from nsqkit.consumer.dead_letter import DeadLetter, GivenUp
from nsqkit.errors import NSQError
from nsqkit.producer.producer import Producer
from tests.simulation.broken import Broken
from tests.simulation.driver.history import OK, UNKNOWN, Publish, name_of
from tests.simulation.driver.network import HOST
from tests.simulation.driver.node import make_clock

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message
    from tests.simulation.driver.world import World

SUFFIX: Final = "-dead"
"""Of the host of the producer."""


class DeadLetters:
    """The dead letters of one consumer, which alone publishes to their topic.

    A message has one dead letter, which may come more than once: a publish that has failed is repeated with the next
    delivery of the message.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world = world
        self._host = name + SUFFIX
        self._topic: str = options["topic"]
        self._has_envelope: bool = options.get("envelope", False)
        own = {"topic", "envelope"}
        self._options = {key: value for key, value in options.items() if key not in own}
        self._life = 0
        self._publish: Callable[[Message, GivenUp], Any]
        read = partial(read_dead_letter, self._topic, has_envelope=self._has_envelope)
        world.history.readers[self._topic] = read

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have a producer within the block."""
        self._life += 1
        before = HOST.set(self._host)
        async with Producer(
            *[f"{node}:4150" for node in self._world.nodes],
            clock=make_clock(),
            random=Random(f"{self._world.plan.seed}/{self._host}/{self._life}"),
            **self._options,
        ) as producer:
            HOST.reset(before)
            self._publish = DeadLetter(producer, self._topic, envelope=self._has_envelope)
            yield

    async def publish(self, message: Message, given_up: GivenUp) -> None:
        """Do as ``DeadLetter``, and record the result."""
        history, name = self._world.history, f"{self._topic}/{name_of(message.body)}"
        publish = history.publishes.get(name)
        if publish is None:
            now = self._world.loop.time()
            publish = history.begin(Publish((name,), self._topic, tuple(self._world.nodes), now, may_repeat=True))
        publish.outcome = publish.outcome or UNKNOWN  # until it has an answer
        try:
            await self._publish(message, given_up)
        except NSQError:
            self._world.reached.add("no dead letter")
            raise
        publish.outcome = OK
        self._world.reached.add("dead letter")


def read_dead_letter(topic: str, body: bytes, *, has_envelope: bool) -> str:
    """Return the name of a dead letter.

    Raises:
        Broken: no client has published it.
    """
    if has_envelope:
        try:
            body = GivenUp.decode(body).body
        except ValueError as error:
            raise Broken(3, f"{body[:60]!r} was delivered: {error}") from error
    return f"{topic}/{name_of(body)}"
