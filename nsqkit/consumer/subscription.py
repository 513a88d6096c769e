"""The subscription of a consumer: what its messages, its handlers and its iterators share.

A subscription is between the code that users call and the core. Answers go from here to sessions, and the
connections that have to send them are woken. Code that receives messages waits for them here.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.callbacks import requeue_delay
from nsqkit.consumer.confirmation import confirm
from nsqkit.consumer.message import FIRST, NOT_HELD
from nsqkit.consumer.session import ConsumerSession
from nsqkit.errors import Closed, FinishFailed, TouchFailed
from nsqkit.options.checks import take_seconds
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsqkit.client.serializers import Serializer
    from nsqkit.clock import Clock
    from nsqkit.consumer.confirmation import Confirming
    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.consumer.message import Holder, Message, Outcome, Wakeable
    from nsqkit.consumer.options import ConsumerOptions
    from nsqkit.errors import NSQError
    from nsqkit.options.durations import Seconds
    from nsqkit.wire.identify import IdentifyRequest


class Subscription:
    """One consumer's subscription to a channel.

    Args:
        topic: the topic's name.
        channel: the channel's name.
        core: the consumer's core.
        options: see ``ConsumerOptions``.
        identity: the content of IDENTIFY.
        serializer: decodes bodies; None leaves them as they are.
        after: called after each call of the core, to act on the changes.

    Attributes:
        topic, channel, core, options: as given.
        clock: the time; None while the consumer is not entered.
        failure: the permanent error that has ended the consumer, if there is one.
        log_fields: ``topic`` and ``channel``, for the ``extra`` of log lines.
        arrived: to be set when there may be messages.

    Raises:
        OptionError: a name is not valid.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        core: ConsumerCore,
        options: ConsumerOptions,
        identity: IdentifyRequest,
        serializer: Serializer[Any, Any] | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.core = core
        self.options = options
        self.after = after
        self.clock: Clock | None = None
        self.failure: NSQError | None = None
        self.log_fields: dict[str, object] = {"topic": topic, "channel": channel}
        self._serializer = serializer
        self._names = (encode_topic(topic), encode_channel(channel))
        self._identity = identity
        self.arrived = anyio.Event()

    def make_session(self, address: str, connection: Wakeable, now_ns: int) -> ConsumerSession:
        """Return the session of a new connection."""
        session = ConsumerSession(
            self._identity,
            *self._names,
            address=address,
            read_timeout_ns=round(self.options.read_timeout * NS_PER_S),
            max_msg_size=self.options.max_msg_size,
            now_ns=now_ns,
        )
        session.connection = connection
        session.subscription = self
        return session

    def now_ns(self) -> int:
        """Return the time; outside of ``async with``, the time of the core's last call."""
        return self.core.now_ns if self.clock is None else self.clock.now_ns()

    # ---- answers ---------------------------------------------------------------------------------------------------

    def finish(self, message: Message) -> bool:
        """Finish a message unless it is answered; return whether it was finished."""
        return _send(message, message.session.finish(message))

    def requeue(self, message: Message, delay: Seconds | None, *, backoff: bool) -> bool:
        """Requeue a message unless it is answered; return whether it was requeued.

        Raises:
            OptionError: the delay is negative or not a duration.
        """
        seconds = requeue_delay(self.options, message.attempts) if delay is None else take_seconds("delay", delay)
        return _send(message, message.session.requeue(message, round(seconds * 1000), backoff=backoff))

    def requeue_now(self, message: Message) -> None:
        """Requeue a message without a delay unless it is answered; a later answer does nothing."""
        _send(message, message.session.requeue_now(message))

    def touch(self, message: Message) -> bool:
        """Touch a message unless it is answered; return whether it was touched."""
        return _send(message, message.session.touch(message, self.now_ns()))

    def finish_all(self, messages: list[Message]) -> None:
        """Finish those of the messages that are not answered, and send FIN without another turn of the event loop."""
        sessions = self.core.sessions
        if len(sessions) == 1:  # messages of other sessions are not held any more
            (session,) = sessions
            session.finish_all(messages)
            session.connection.flush()
            return
        finished: dict[Holder, None] = {}
        for holder, run in groupby(messages, attrgetter("session")):
            holder.finish_all(list(run))
            finished[holder] = None
        for holder in finished:
            holder.connection.flush()

    def finish_confirmed(self, messages: Iterable[Message]) -> Confirming:
        """Finish those of the messages that are not answered, with a barrier."""
        return confirm(messages, lambda session, held: session.finish_all(held), FinishFailed)

    def touch_confirmed(self, messages: Iterable[Message]) -> Confirming:
        """Touch those of the messages that are not answered, with a barrier."""
        now_ns = self.now_ns()

        def touch(session: Holder, held: list[Message]) -> None:
            for message in held:
                session.touch(message, now_ns)

        return confirm(messages, touch, TouchFailed)

    def decode(self, body: bytes) -> Any:
        """Return the body's value."""
        return body if self._serializer is None else self._serializer.decode(body)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def arrival(self) -> anyio.Event | None:
        """Return an event that is set when there may be messages; None if the consumer is stopped.

        Raises:
            Closed: outside of ``async with``.
        """
        if self.core.is_closing:
            return None
        self.check_entered()
        if self.arrived.is_set():
            self.arrived = anyio.Event()
        return self.arrived

    def check_entered(self) -> Clock:
        """Return the clock.

        Raises:
            Closed: outside of ``async with``.
        """
        if self.clock is None:
            raise Closed("the consumer is closed: receive inside of 'async with Consumer(…)'")
        return self.clock

    def check_failure(self) -> None:
        """Raise the permanent error that has ended the consumer, if there is one."""
        if self.failure is not None:
            raise self.failure

    def catch_up(self, now_ns: int) -> None:
        """Touch or remove waiting messages, because a handler has kept the event loop from doing so in time."""
        self.core.handle_deadline(now_ns)
        self.after()


def _send(message: Message, outcome: Outcome | None) -> bool:
    if outcome is FIRST:
        message.session.connection.wake()
    return outcome is not NOT_HELD
