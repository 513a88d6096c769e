"""Messages put into a broker without a client, and a look at those that it holds.

``inject`` gives a message any id, number of attempts and timestamp, so that a test begins with the situation that it
is about: the last attempt before the limit, an old message, a message of one channel only. The messages that are shown
stay where they are. The caller has the broker deliver afterwards.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.wire.messages import (
    ATTEMPTS_MAX,
    FRAME_HEADER_LENGTH,
    attempts_of,
    encode_message,
    id_of,
    timestamp_of,
)
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.topic import Topic

Place: TypeAlias = Literal["waiting", "deferred", "in_flight"]

_ID: Final = re.compile(rb"[0-9a-f]{16}")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_INT64_MAX: Final = (1 << 63) - 1
_NS_PER_S: Final = 1_000_000_000


@attrs.frozen(kw_only=True)
class MessageState:
    """One message that a broker holds.

    Attributes:
        id: 16 hexadecimal digits, as a consumer gets them.
        attempts: the number that the consumer gets, or in flight has got.
        timestamp_ns: the time of publication, ns since the Unix epoch.
        state: ``waiting``, ``deferred`` or ``in_flight``.
        due_ns: the end of the delay or of the message timeout, ns since the Unix epoch; None for a waiting message, and
            for a deferred one that waits in a topic, since its delay begins when a channel gets it.
    """

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    state: Place
    due_ns: int | None = None


def publish(broker: Broker, now_ns: int, topic: str, *bodies: bytes, defer: float | timedelta | None = None) -> None:
    """Publish messages to a topic, as a client does with PUB, or with DPUB for ``defer`` (seconds or a timedelta).

    Raises:
        OptionError: a value that nsqd refuses, too, or no message.
        OSError: the disk fails.
    """
    name = encode_topic(topic)
    if not bodies:
        raise OptionError("publish has no message; allowed are one or more bodies after the topic")
    for body in bodies:
        _check_body(broker, body)
    delay_ns = _delay_ns(broker, "defer", defer)
    broker.topics.get_or_create(name).put(bodies, now_ns, delay_ns=delay_ns)


def inject(
    broker: Broker,
    now_ns: int,
    topic: str,
    body: bytes,
    *,
    channel: str | None = None,
    id: str | bytes | None = None,  # noqa: A002 - its name in a consumer's message
    attempts: int = 1,
    timestamp: datetime | int | None = None,
    deferred: float | timedelta | None = None,
) -> bytes:
    """Place one message, and return its id.

    Args:
        broker: where to; the topic and the channel are created if they do not exist.
        now_ns: the time.
        topic: its topic.
        body: 1 byte or more, at most ``max_msg_size``.
        channel: the only channel that gets it; by default each channel of the topic does, as with a publish.
        id: 16 hexadecimal digits, in lower case, that no other message there has; by default the broker's next id.
        attempts: the number that the consumer gets with the first delivery, 1 to 65535; behind that comes 0.
        timestamp: the time of publication: a datetime with a time zone, or ns since the Unix epoch; by default now.
        deferred: seconds, or a timedelta, until it may be delivered, at most ``max_req_timeout``.

    Raises:
        OptionError: a value that is not allowed.
        OSError: the disk fails.
    """
    topic_name = encode_topic(topic)
    channel_name = None if channel is None else encode_channel(channel)
    _check_body(broker, body)
    message_id = None if id is None else _message_id(id)
    if type(attempts) is not int or not 1 <= attempts <= ATTEMPTS_MAX:
        raise OptionError(f"attempts is {attempts!r}; allowed is 1 to {ATTEMPTS_MAX}")
    timestamp_ns = now_ns if timestamp is None else _timestamp_ns(timestamp)
    delay_ns = _delay_ns(broker, "deferred", deferred)
    if message_id is None:
        ((prefix, (suffix,)),) = broker.storage.guids.take(1, now_ns)[-1:]
        message_id = prefix + suffix
    else:
        _check_is_new(broker, message_id, topic, channel)
        broker.storage.guids.gave_all = False
    frame = encode_message(timestamp_ns, attempts, message_id, body)
    found = broker.topics.get_or_create(topic_name)
    if channel_name is None:
        _put_in_topic(broker, found, frame, now_ns, delay_ns)
    elif delay_ns:
        found.channel(channel_name, now_ns).put_deferred((frame,), now_ns + delay_ns)
    else:
        found.channel(channel_name, now_ns).put((frame,))
    return message_id


def _put_in_topic(broker: Broker, topic: Topic, frame: bytes, now_ns: int, delay_ns: int) -> None:
    """Have a message wait in the topic, which gives it to the channels at once if it can."""
    topic.queue.put((frame,))
    if delay_ns:
        topic.waiting_delays_ns[id_of(frame)] = delay_ns
    topic.message_count += 1
    topic.message_bytes += len(frame) - FRAME_HEADER_LENGTH
    again_ns = topic.handle_deadline(now_ns)
    if again_ns is not None:
        broker.timers.schedule(topic, again_ns)


def messages(broker: Broker, topic: str, channel: str | None = None) -> list[MessageState]:
    """Return the messages of a channel, or those that wait in a topic; they stay.

    First those in flight, by consumer and in the order of delivery, then the waiting ones, oldest first, then the
    deferred ones, earliest first. A topic or channel that does not exist has none.

    Raises:
        OptionError: no topic or channel can have this name.
        OSError: messages on disk cannot be read now.
    """
    found = broker.topics.get(encode_topic(topic))
    if channel is None:
        return [] if found is None else _in_topic(found)
    name = encode_channel(channel)
    return [] if found is None or name not in found.channels else _in_channel(found.channels[name])


def _in_topic(topic: Topic) -> list[MessageState]:
    delays_ns = topic.waiting_delays_ns
    return [_state(frame, "deferred" if id_of(frame) in delays_ns else "waiting") for frame in topic.queue.messages()]


def _in_channel(channel: Channel) -> list[MessageState]:
    # Messages that were deferred before a restart are in the queue until they are taken out for the first time.
    due_ns = channel.deferred_times.by_id
    waiting, deferred = [], list(channel.deferred.messages())
    for frame in channel.queue.messages():
        if id_of(frame) in due_ns:
            deferred.append((due_ns[id_of(frame)], frame))
        else:
            waiting.append(_state(frame, "waiting"))
    return [*_in_flight(channel), *waiting, *_deferred(deferred)]


def _in_flight(channel: Channel) -> Iterator[MessageState]:
    for subscription in channel.holders():
        held = subscription.in_flight
        for frame, _, deadline_ns in (*held.untouched.values(), *held.touched.values()):
            yield _state(frame, "in_flight", deadline_ns)


def _deferred(found: Iterable[tuple[int, bytes]]) -> list[MessageState]:
    return [_state(frame, "deferred", due_ns) for due_ns, frame in sorted(found, key=lambda pair: pair[0])]


def _state(frame: bytes, place: Place, due_ns: int | None = None) -> MessageState:
    return MessageState(
        id=id_of(frame),
        body=frame[FRAME_HEADER_LENGTH:],
        attempts=attempts_of(frame),
        timestamp_ns=timestamp_of(frame),
        state=place,
        due_ns=due_ns,
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_body(broker: Broker, body: object) -> None:
    if not isinstance(body, bytes):
        raise OptionError(f"body is {body!r}; allowed is bytes")
    size_max = broker.options.max_msg_size
    if not 1 <= len(body) <= size_max:
        raise OptionError(f"body has {len(body)} bytes; allowed is 1 to {size_max}, the broker's max_msg_size")


def _message_id(value: object) -> bytes:
    encoded = value.encode("ascii", "replace") if isinstance(value, str) else value
    if not isinstance(encoded, bytes) or _ID.fullmatch(encoded) is None:
        raise OptionError(f"id is {value!r}; allowed are 16 hexadecimal digits such as '0123456789abcdef'")
    return encoded


def _check_is_new(broker: Broker, message_id: bytes, topic: str, channel: str | None) -> None:
    found = broker.topics.get(topic.encode())
    names = (name.decode() for name in found.channels) if found is not None and channel is None else (channel,)
    for name in (None, *names):
        if any(message.id == message_id for message in messages(broker, topic, name)):
            place = f"topic {topic!r}" if name is None else f"channel {name!r} of topic {topic!r}"
            raise OptionError(f"id is {message_id.decode()!r}, which a message of {place} has; allowed is another id")


def _timestamp_ns(value: object) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = (value - _EPOCH) // timedelta(microseconds=1) * 1000
    if type(value) is not int or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        allowed = "a datetime with a time zone, or ns since the Unix epoch that fit in 64 bits"
        raise OptionError(f"timestamp is {value!r}; allowed is {allowed}")
    return value


def _delay_ns(broker: Broker, name: str, value: object) -> int:
    if value is None:
        return 0
    return round(take_seconds(name, value, broker.options.max_req_timeout_ns / _NS_PER_S) * _NS_PER_S)
