"""Messages on which handlers have failed ``max_attempts`` times.

The function ``giving_up`` is called with the message and a ``GivenUp``, which has the reason. The message is finished
after the function has returned, so a dead letter is acknowledged before its original is finished. If the function
raises, the message is requeued, and the function is called again at the next delivery.

A message is given up only after a handler of this consumer has begun it at its last attempt. ``attempts`` counts
deliveries, and not every delivery is an attempt of a handler: a message is also delivered again after a lost connection
or a restart.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Callable
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs

from nsqkit.client.serializers import EncodedBody
from nsqkit.consumer.handler import check_handler, is_async
from nsqkit.errors import OptionError
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message

GivingUp: TypeAlias = "Callable[[Message, GivenUp], object] | Callable[[Message], object]"
"""A policy: a function of a message, or of a message and a ``GivenUp``; async, or plain and quick."""

REMEMBERED_MAX: Final = 10_000
"""Messages whose last attempt is recorded. One that is dropped is handled once more."""


@attrs.frozen(kw_only=True)
class GivenUp:
    """A message that is given up, and the reason.

    Attributes:
        topic: its topic.
        channel: the channel that it was consumed from.
        nsqd_address: ``host:port`` of the nsqd that delivered it.
        id: its 16 bytes, as text.
        attempts: deliveries, the last one included.
        timestamp_ns: when it was published, ns since the Unix epoch, by the broker's clock.
        given_up_ns: when it was given up, ns since the Unix epoch, by this machine's clock.
        error: what the handler raised last; None if it gave no answer in time.
        error_type: the name of the error's class; empty for none.
        error_text: the text of the error; empty for none.
        body: the bytes that were published.
    """

    topic: str
    channel: str
    nsqd_address: str
    id: str
    attempts: int
    timestamp_ns: int
    given_up_ns: int
    body: bytes = attrs.field(repr=False)
    error: Exception | None = attrs.field(default=None, eq=False)
    error_type: str = attrs.field()
    error_text: str = attrs.field()

    @error_type.default
    def _error_type(self) -> str:
        return "" if self.error is None else type(self.error).__qualname__

    @error_text.default
    def _error_text(self) -> str:
        try:
            return "" if self.error is None else str(self.error)
        except Exception:
            return "<exception str() failed>"  # the text of Python's tracebacks

    def encode(self) -> bytes:
        """Return the envelope of a dead letter: a JSON object of the attributes above, ``body`` in Base64.

        ``error`` is left out; ``error_type`` and ``error_text`` stand for it.
        """
        fields = attrs.asdict(self, filter=lambda field, _: field.name not in {"error", "body"})
        return json.dumps({**fields, "body": base64.b64encode(self.body).decode()}).encode()

    @classmethod
    def decode(cls, envelope: bytes) -> GivenUp:
        """Return the object that ``encode`` has encoded, without ``error``.

        Raises:
            ValueError: the envelope is not valid.
        """
        try:
            fields = json.loads(envelope)
            return cls(**{**fields, "body": base64.b64decode(fields["body"], validate=True)})
        except (TypeError, KeyError, ValueError, binascii.Error) as error:
            raise ValueError(f"{envelope[:100]!r} is not the envelope of a dead letter: {error}") from error


def discard(message: Message) -> None:
    """Do nothing, so that the message is finished; as in go-nsq, and the default."""


class Publisher(Protocol):
    """A producer, as ``DeadLetter`` uses it: async or blocking."""

    def publish(self, topic: str, body: bytes, /) -> object: ...


class DeadLetter:
    """Publishes a message to another topic before it is finished.

    Args:
        producer: an open ``Producer``, ``HTTPProducer`` or ``BlockingProducer``. A ``BlockingConsumer`` accepts only a
            ``BlockingProducer``, since the others belong to an event loop of the program. Its serializer is not used.
        topic: the topic to publish to.
        envelope: False publishes the body as it is, True the JSON object of ``GivenUp.encode``.

    Raises:
        OptionError: the topic's name is not valid, or the producer cannot publish.
    """

    def __init__(self, producer: Publisher, topic: str, *, envelope: bool = False) -> None:
        encode_topic(topic)
        publish = getattr(producer, "publish", None)
        if isinstance(producer, type) or not callable(publish):
            raise OptionError(f"producer is {producer!r}; allowed is a Producer or a BlockingProducer")
        if not isinstance(envelope, bool):
            raise OptionError(f"envelope is {envelope!r}; allowed is True or False")
        self._publish = publish
        self._topic = topic
        self._envelope = envelope
        self.is_async = is_async(publish) or hasattr(producer, "__aenter__")

    def __call__(self, message: Message, given_up: GivenUp) -> object:
        """Publish the message; with an async producer, return an awaitable."""
        return self._publish(self._topic, EncodedBody(given_up.encode() if self._envelope else message.body))


Policy: TypeAlias = "Callable[[Message, GivenUp], object]"
"""A policy as it is called: with both arguments."""


def check_policy(giving_up: object) -> None:
    """Check ``giving_up`` when it is given; the error is that of ``with_two_arguments``."""
    check_handler(giving_up, can_await=True, name="giving_up")
    with_two_arguments(giving_up)  # type: ignore[arg-type]


def with_two_arguments(giving_up: Callable[..., Any]) -> Policy:
    """Return the policy as a function of two arguments; raise OptionError if it is no policy."""
    try:
        parameters = signature(giving_up).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return giving_up
    by_position = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    positional = [parameter for parameter in parameters if parameter.kind in by_position]
    required_count = sum(parameter.default is Parameter.empty for parameter in positional)
    takes_any = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters)
    if required_count <= 2 and (takes_any or len(positional) >= 2):
        return giving_up
    if required_count <= 1 and len(positional) == 1:
        return lambda message, given_up: giving_up(message)
    raise OptionError(f"giving_up is {giving_up!r}; allowed is a function of a message, or of a message and a GivenUp")


class LastAttempts:
    """The messages of which a handler has begun the last attempt, each with the error of the handler, if it raised.

    A message is dropped when it is finished, and after ``REMEMBERED_MAX`` others.
    """

    def __init__(self) -> None:
        self._errors: OrderedDict[tuple[str, bytes], Exception | None] = OrderedDict()

    def __contains__(self, message: Message) -> bool:
        """Whether a handler has begun a message, and may not do so again."""
        return _key(message) in self._errors

    def begin(self, message: Message) -> bool:
        """Record a message; return False if a handler has begun it at an earlier delivery and may not do so again."""
        key = _key(message)
        if key in self._errors:
            return False
        self._errors[key] = None
        if len(self._errors) > REMEMBERED_MAX:
            self._errors.popitem(last=False)
        return True

    def fail(self, message: Message, error: Exception) -> None:
        self._errors[_key(message)] = error

    def error(self, message: Message) -> Exception | None:
        """Return the error of the last attempt; None if it had none."""
        return self._errors.get(_key(message))

    def forget(self, message: Message) -> None:
        """Drop a message: it was finished, or its handler was cancelled and has not failed."""
        self._errors.pop(_key(message), None)


def _key(message: Message) -> tuple[str, bytes]:
    return message.nsqd_address, message.id
