"""What becomes of a message that was delivered more than ``max_attempts`` times.

The rule it guards: a message is given up only when its successor is safe. It is finished after the policy has returned;
when that raises, the message is requeued and given up again at its next delivery.

How to read it: a policy is any function of a message, async or plain; ``discard`` and ``DeadLetter`` are two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from nsqkit.errors import OptionError
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message

GivingUp: TypeAlias = "Callable[[Message], Awaitable[object] | None]"
"""Called in the event loop with a message that is to be given up; it is finished when this has returned."""


def discard(message: Message) -> None:
    """Do nothing, so that the message is finished and gone; as go-nsq does it, and the default."""


class Publisher(Protocol):
    """What ``DeadLetter`` wants of a ``Producer``."""

    async def publish(self, topic: str, body: bytes, /) -> object:
        """Publish one message; return when the broker has answered."""
        ...


class DeadLetter:
    """Publishes the body of a message to another topic, and then lets the message be finished.

    Args:
        producer: a ``Producer`` that has been entered.
        topic: the topic to publish to.

    Raises:
        OptionError: the topic's name is not valid.
    """

    def __init__(self, producer: Publisher, topic: str) -> None:
        encode_topic(topic)
        if not hasattr(producer, "publish"):
            raise OptionError(f"producer is {producer!r}; allowed is a Producer")
        self._producer = producer
        self._topic = topic

    async def __call__(self, message: Message) -> None:
        """Publish the message's body."""
        await self._producer.publish(self._topic, message.body)
