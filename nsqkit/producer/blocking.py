"""The producer without ``await``: the same methods, for any number of threads.

There is one producer, and it runs in the event-loop thread (``nsqkit.loop_thread``); this module passes calls to it and
waits for the results. A publish goes one of three ways. A thread that publishes alone, one message at a time, uses the
socket itself (``nsqkit.producer.thread_lease``). A publish that can be sent at once needs no task in the event loop;
those of several threads share wake-ups, writes and reads. One that has to wait, or may be sent again, runs as a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from nsqkit.errors import NotConnected, WouldWait
from nsqkit.loop_thread import BlockingClient, OneShot, forward, forward_async
from nsqkit.options.durations import Seconds
from nsqkit.producer.arguments import Bytes
from nsqkit.producer.options import ProducerKeywords
from nsqkit.producer.producer import Producer
from nsqkit.producer.thread_lease import ThreadPublisher

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer
    from nsqkit.clock import Clock
    from nsqkit.producer.pool_connection import Receipt


class BlockingProducer(BlockingClient[Producer]):
    """Publishes to nsqds from threads; used with ``with``, or from ``open`` to ``close``.

    It belongs to the process that has opened it. A process that is forked meanwhile gets ``Closed``, and may open it
    itself. Its methods raise ``Closed`` while it is not open in this process.

    Args:
        addresses: as for ``Producer``; so are the following ones.
        nsqd_tcp_addresses: more of them, as a list.
        nsqd_http_addresses: HTTP addresses of the same nsqds.
        serializer: makes a body of each published value; it runs in the event-loop thread, in the caller's context.
        clock: the time; by default the real one.
        options: see ``ProducerOptions``.

    Attributes:
        options: all of its options.
        nsqd_tcp_addresses: the addresses of the nsqds.

    Raises:
        OptionError: an address or an option that cannot be used.
    """

    def __init__(
        self,
        *addresses: str,
        nsqd_tcp_addresses: Sequence[str] = (),
        nsqd_http_addresses: Sequence[str] = (),
        serializer: Serializer[Any, Any] | None = None,
        clock: Clock | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        def make() -> Producer:
            return Producer(
                *addresses,
                nsqd_tcp_addresses=nsqd_tcp_addresses,
                nsqd_http_addresses=nsqd_http_addresses,
                serializer=serializer,
                clock=clock,
                **options,
            )

        super().__init__(make, "producer")
        example = make()
        self.options = example.options
        self.nsqd_tcp_addresses = example.nsqd_tcp_addresses
        self._has_serializer = serializer is not None
        self._has_clock = clock is not None
        self._sends_once = self.options.publish_attempts == 1 and not self.options.publish_timeout
        self._thread_publisher: ThreadPublisher | None = None

    def open(self) -> Self:
        """Start; connections are made meanwhile. Raises ``Closed`` if it is open already."""
        super().open()
        self._thread_publisher = None if self._has_serializer or self._has_clock else ThreadPublisher(self._opened())
        return self

    # ---- publishing ----------------------------------------------------------------------------------------------

    def publish(self, topic: str, body: Any, *, key: str | Bytes | None = None, timeout: Seconds | None = None) -> None:
        """Publish one message; return when the broker has acknowledged it.

        The arguments and errors are those of ``Producer.publish``.
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
        """Publish messages in one command, all or none; otherwise as ``publish``."""
        begin, publish = Producer.multi_publish_nowait, Producer.multi_publish
        self._publish(begin, publish, topic, bodies, key=key, timeout=timeout)

    def deferred_publish(
        self,
        topic: str,
        body: Any,
        delay: Seconds,
        *,
        key: str | Bytes | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Publish one message that is delivered after ``delay`` seconds; otherwise as ``publish``."""
        begin, publish = Producer.deferred_publish_nowait, Producer.deferred_publish
        self._publish(begin, publish, topic, body, delay, key=key, timeout=timeout)

    def publish_nowait(self, topic: str, body: Any, *, key: str | Bytes | None = None) -> Future[None]:
        """Publish one message once, without waiting.

        Returns:
            A future that returns when the broker has acknowledged, and otherwise raises as ``publish``; ``WouldWait``
            where the message cannot be sent at once and so is not sent. It cannot be cancelled. Its callbacks run in
            the event-loop thread, so they must be short.

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

    # ---- connections, topics and statistics ----------------------------------------------------------------------

    ping = forward_async(Producer.ping)
    wait_connected = forward_async(Producer.wait_connected)
    ensure_topic = forward_async(Producer.ensure_topic)
    ensure_channel = forward_async(Producer.ensure_channel)
    stats = forward(Producer.stats)

    @property
    def is_connected(self) -> bool:
        """True while there is a connection to at least one nsqd, after its handshake."""
        loop_client = self._loop_client
        return loop_client is not None and loop_client.is_here and loop_client.client.is_connected

    def _publish(
        self,
        begin: Callable[..., Receipt],
        publish: Callable[..., Awaitable[None]],
        *what: Any,
        key: str | Bytes | None,
        timeout: Seconds | None,
    ) -> None:
        loop_client = self._opened()
        if timeout is None and self._sends_once:
            try:
                if self._thread_publisher is not None and self._thread_publisher.publish(begin, what, key):
                    return
                answer: OneShot[None] = OneShot()
                self._put(begin, what, key, answer.resolve)
                answer.get()
                return
            except (WouldWait, NotConnected):
                pass  # it has certainly not arrived, so it is sent again
        loop_client.run(partial(publish, loop_client.client, *what, key=key, timeout=timeout))

    def _begin(self, begin: Callable[..., Receipt], *what: Any, key: str | Bytes | None) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def resolve(error: Exception | None) -> None:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._put(begin, what, key, resolve)
        return future

    def _put(
        self,
        begin: Callable[..., Receipt],
        what: tuple[Any, ...],
        key: str | Bytes | None,
        resolve: Callable[[Exception | None], object],
    ) -> None:
        """Publish in the event loop, and have ``resolve`` called there with the answer."""
        loop_client = self._opened()
        if self._has_serializer:  # it may read context variables: a trace's context is one
            begin = partial(copy_context().run, begin)

        def start() -> None:
            try:
                receipt = begin(loop_client.client, *what, key=key)
            except Exception as error:
                resolve(error)
            else:
                receipt.call_back(resolve)

        loop_client.put(start, resolve)
