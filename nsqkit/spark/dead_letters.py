"""Messages that were delivered too often: they are published to another topic of their nsqd, as envelopes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter

import attrs

from nsqkit.client.options import ConnectionOptions
from nsqkit.clock import Clock
from nsqkit.consumer import Message
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.errors import BrokerError, NSQError, OptionError
from nsqkit.producer import Producer
from nsqkit.spark.options import ConsumerSpec

logger = logging.getLogger("nsqkit.spark")


async def publish_dead_letters(spec: ConsumerSpec, messages: Sequence[Message], clock: Clock) -> list[Message]:
    """Publish those of the messages that exceed ``max_attempts``, and return those that are to be finished.

    The others of them are requeued. Messages that do not exceed it are left alone.

    Args:
        spec: the limit, the topic and the options of the connections.
        messages: of one or more nsqds.
        clock: the time.
    """
    topic = spec.dead_letter_topic
    if topic is None:
        return []
    by_address = attrgetter("nsqd_address")
    dead = sorted((message for message in messages if message.attempts > spec.max_attempts), key=by_address)
    published: list[Message] = []
    for address, letters in groupby(dead, by_address):
        published += await _publish(spec, address, topic, list(letters), clock)
    return published


async def _publish(
    spec: ConsumerSpec, address: str, topic: str, letters: Sequence[Message], clock: Clock
) -> list[Message]:
    """Publish messages to an nsqd, and return those that it has accepted; requeue the others."""
    names = attrs.fields_dict(ConnectionOptions)
    options = {name: value for name, value in spec.connection.items() if name in names}
    published: list[Message] = []
    waiting = deque(letters)
    try:
        async with Producer(address, clock=clock, **options) as producer:
            while waiting:
                try:
                    await producer.publish(topic, _given_up(waiting[0], clock.now_ns()).encode())
                except (BrokerError, OptionError) as error:  # an envelope may be too large where the next one is not
                    _requeue([waiting.popleft()], address, error)
                else:
                    published.append(waiting.popleft())
    except NSQError as error:
        _requeue(waiting, address, error)
    return published


def _requeue(letters: Collection[Message], address: str, error: NSQError) -> None:
    logger.warning("%d dead letters of %s are requeued: %s", len(letters), address, error)
    for message in letters:
        if not message.is_answered:
            message.requeue(backoff=False)


def _given_up(message: Message, now_ns: int) -> GivenUp:
    return GivenUp(
        topic=message.topic,
        channel=message.channel,
        nsqd_address=message.nsqd_address,
        id=message.id.decode("ascii", "backslashreplace"),
        attempts=message.attempts,
        timestamp_ns=message.timestamp_ns,
        given_up_ns=now_ns,
        body=message.body,
    )
