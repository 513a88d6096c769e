"""The producer without ``await``: the same methods, for any number of threads.

The rule it guards: there is one producer, and it runs in the event-loop thread (``nsqkit.loop_thread``). This module
only hands calls to it and waits for the results. A publish that can be sent at once needs no task, and the publishes of
several threads share wake-ups, writes and reads. A publish that has to wait, or may be sent again, runs as a task. A
thread that publishes alone, one message at a time, uses the socket directly (``nsqkit.producer.direct``).

How to read it: ``_publish`` is all three ways; the methods say what is published.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from nsqkit.errors import NotConnected, WouldWait
from nsqkit.loop_thread import BlockingClient, OneShot
from nsqkit.options.durations import Seconds
from nsqkit.producer.arguments import Bytes
from nsqkit.producer.options import ProducerKeywords
from nsqkit.producer.producer import Producer
from nsqkit.producer.thread_lease import ThreadPublisher

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer
    from nsqkit.producer.receipt import Receipt
    from nsqkit.producer.stats import ProducerStats


class BlockingProducer(BlockingClient[Producer]):
    """Publishes to nsqds from threads, for ``with``, or from ``open`` to ``close``.

    It belongs to the process that has opened it. One that was forked meanwhile gets ``Closed``, and can open it, too.

    Args:
        addresses: as for ``Producer``; so are all others.
        nsqd_tcp_addresses: further ones, as a list.
        nsqd_http_addresses: where the same nsqds speak HTTP.
        serializer: makes a body of what is published; it runs in the event-loop thread, in the context of the caller.
        options: see ``ProducerOptions``.

    Attributes:
        options: all of its options.
        nsqd_tcp_addresses: the nsqds that it publishes to.

    Raises:
        OptionError: an address or an option that cannot be used.
    """

    def __init__(
        self,
        *addresses: str,
        nsqd_tcp_addresses: Sequence[str] = (),
        nsqd_http_addresses: Sequence[str] = (),
        serializer: Serializer[Any, Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        def make() -> Producer:
            return Producer(
                *addresses,
                nsqd_tcp_addresses=nsqd_tcp_addresses,
                nsqd_http_addresses=nsqd_http_addresses,
                serializer=serializer,
                **options,
            )

        super().__init__(make, "producer")
        example = make()
        self.options = example.options
        self.nsqd_tcp_addresses = example.nsqd_tcp_addresses
        self._may_lease = serializer is None
        self._thread_publisher: ThreadPublisher | None = None
        self._goes_once = self.options.publish_attempts == 1 and not self.options.publish_timeout

    def open(self) -> Self:
        """Begin; connections are made meanwhile.

        Raises:
            Closed: it is open already.
        """
        super().open()
        self._thread_publisher = ThreadPublisher(self._opened()) if self._may_lease else None
        return self

    # ---- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, body: Any, *, key: str | Bytes | None = None, timeout: Seconds | None = None
    ) -> None:
        """Publish one message; return when the broker has acknowledged it.

        Args:
            topic: its topic.
            body: 1 to ``max_msg_size`` bytes; or what the serializer makes them of.
            key: what belongs together has the same, and goes to the same nsqd under the policy ``by-key``.
            timeout: seconds, instead of ``publish_timeout``; 0 for no limit.

        Raises:
            NSQError: as ``Producer.publish``; ``Closed`` while it is not open in this process.
        """
        self._publish(Producer.publish_nowait, Producer.publish, topic, body, key=key, timeout=timeout)

    def multi_publish(
        self,
        topic: str,
        bodies: Sequence[Any],
        *,
        key: str | Bytes | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Publish messages in one command: all or none.

        Args:
            topic: their topic.
            bodies: as for ``Producer.multi_publish``.
            key: as in ``publish``.
            timeout: as in ``publish``.

        Raises:
            NSQError: as ``publish``.
        """
        self._publish(
            Producer.multi_publish_nowait, Producer.multi_publish, topic, bodies, key=key, timeout=timeout
        )

    def deferred_publish(
        self,
        topic: str,
        body: Any,
        delay: Seconds,
        *,
        key: str | Bytes | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Publish one message that is delivered later.

        Args:
            topic: its topic.
            body: as in ``publish``.
            delay: seconds, 0 to ``max_defer_timeout``; rounded to milliseconds.
            key: as in ``publish``.
            timeout: as in ``publish``.

        Raises:
            NSQError: as ``publish``.
        """
        self._publish(
            Producer.deferred_publish_nowait,
            Producer.deferred_publish,
            topic,
            body,
            delay,
            key=key,
            timeout=timeout,
        )

    def publish_nowait(self, topic: str, body: Any, *, key: str | Bytes | None = None) -> Future[None]:
        """Publish one message without waiting; what becomes of it can be had from what is returned.

        It goes once. What cannot be sent at once, because there is no connection or no room, is not sent, and its
        future raises ``WouldWait``. Functions that are added to the future are called in the event-loop thread, so
        they are to be quick.

        Args:
            topic: as in ``publish``.
            body: as in ``publish``.
            key: as in ``publish``.

        Returns:
            A future that returns when the broker has acknowledged, and otherwise raises as ``publish``. It cannot be
            cancelled.

        Raises:
            Closed: while it is not open in this process.
        """
        return self._begin(Producer.publish_nowait, topic, body, key=key)

    def multi_publish_nowait(
        self, topic: str, bodies: Sequence[Any], *, key: str | Bytes | None = None
    ) -> Future[None]:
        """Publish messages in one command without waiting, all or none; otherwise as ``publish_nowait``."""
        return self._begin(Producer.multi_publish_nowait, topic, bodies, key=key)

    def deferred_publish_nowait(
        self, topic: str, body: Any, delay: Seconds, *, key: str | Bytes | None = None
    ) -> Future[None]:
        """Publish one message that is delivered later without waiting; otherwise as ``publish_nowait``."""
        return self._begin(Producer.deferred_publish_nowait, topic, body, delay, key=key)

    # ---- all that is not publishing ------------------------------------------------------------------------------

    def ping(self) -> None:
        """Return when there is a connection, and have a NOP sent on each, which shows those that are dead.

        Raises:
            NSQError: as ``Producer.ping``.
        """
        loop_client = self._opened()
        loop_client.run(loop_client.client.ping)

    def wait_connected(self, timeout: Seconds | None = None) -> None:
        """Return when there is a connection that was greeted, to one nsqd at least.

        Args:
            timeout: seconds to wait for it; None waits for as long as it takes.

        Raises:
            NSQError: as ``Producer.wait_connected``.
        """
        loop_client = self._opened()
        loop_client.run(partial(loop_client.client.wait_connected, timeout))

    def ensure_topic(self, topic: str) -> None:
        """Have every nsqd of ``nsqd_http_addresses`` create a topic, unless it has it.

        Raises:
            NSQError: as ``Producer.ensure_topic``.
        """
        loop_client = self._opened()
        loop_client.run(partial(loop_client.client.ensure_topic, topic))

    def ensure_channel(self, topic: str, channel: str) -> None:
        """Have every nsqd of ``nsqd_http_addresses`` create a channel, and its topic, unless it has them.

        Raises:
            NSQError: as ``Producer.ensure_channel``.
        """
        loop_client = self._opened()
        loop_client.run(partial(loop_client.client.ensure_channel, topic, channel))

    def stats(self) -> ProducerStats:
        """Return how each nsqd is, what it has acknowledged, and what is on its way.

        Raises:
            Closed: while it is not open in this process.
        """
        loop_client = self._opened()
        return loop_client.ask(loop_client.client.stats)

    @property
    def is_connected(self) -> bool:
        """True while there is a connection that was greeted, to one nsqd at least."""
        loop_client = self._loop_client
        return loop_client is not None and loop_client.is_here and loop_client.client.is_connected

    # ---- within --------------------------------------------------------------------------------------------------

    def _publish(
        self,
        begin: Callable[..., Receipt],
        publish: Callable[..., Awaitable[None]],
        *what: Any,
        key: str | Bytes | None,
        timeout: Seconds | None,
    ) -> None:
        """Publish in this thread, or by the short way if it can go at once, otherwise by the long one."""
        loop_client = self._opened()
        if not self._may_lease:
            begin = _in_context(begin)
        if timeout is None and self._goes_once:
            try:
                if self._thread_publisher is not None and self._thread_publisher.publish(begin, what, key):
                    return
                answer: OneShot[None] = OneShot()
                start = partial(_start, begin, loop_client.client, what, key, answer.resolve)
                loop_client.put(start, answer.resolve)
                answer.get()
                return
            except (WouldWait, NotConnected):
                pass  # it has certainly not arrived, so it goes again, as every publish does
        loop_client.run(partial(publish, loop_client.client, *what, key=key, timeout=timeout))

    def _begin(self, begin: Callable[..., Receipt], *what: Any, key: str | Bytes | None) -> Future[None]:
        loop_client = self._opened()
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        if not self._may_lease:
            begin = _in_context(begin)
        resolve = partial(_resolve, future)
        loop_client.put(partial(_start, begin, loop_client.client, what, key, resolve), resolve)
        return future


def _in_context(begin: Callable[..., Receipt]) -> Callable[..., Receipt]:
    """Return ``begin`` with the caller's context variables, which a serializer may read: a trace's context is one."""
    return partial(copy_context().run, begin)


def _start(
    begin: Callable[..., Receipt],
    producer: Producer,
    what: tuple[Any, ...],
    key: str | Bytes | None,
    resolve: Callable[[Exception | None], object],
) -> None:
    """Publish, in the event loop, and have ``resolve`` called with the answer."""
    try:
        receipt = begin(producer, *what, key=key)
    except Exception as error:
        resolve(error)
    else:
        receipt.call_back(resolve)


def _resolve(future: Future[None], error: Exception | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
