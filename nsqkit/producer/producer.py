"""The producer: publishes to one nsqd or a pool of them, and returns when an nsqd has the message.

When ``publish`` returns, a broker has acknowledged the message. When it raises, the error says whether the message was
refused (``BrokerError``), was never sent (``OptionError``, ``NotConnected``, ``Closed``), or may have arrived
(``ConnectionLost``, ``PublishTimeout``). Any number of tasks may publish at once: their commands share connections,
writes and reads. A task may be cancelled anywhere; the message is not sent if it was not sent by then.

Arguments are checked here, before anything is sent; ``publisher`` does the rest.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Unpack

from nsqkit.client.dialler import Dial, Dialler
from nsqkit.clock import Clock, LoopClock, move_on_after
from nsqkit.errors import Closed, PublishTimeout
from nsqkit.options.checks import check_tools, make_options, take_seconds, take_timeout
from nsqkit.options.durations import Seconds
from nsqkit.producer.arguments import (
    TIMEOUT_MAX,
    Bodies,
    Bytes,
    delay_ms,
    encode_key,
    known_topic_name,
    topic_name,
    unite_addresses,
)
from nsqkit.producer.creation import create_channel, create_topic, daemons_at
from nsqkit.producer.options import ProducerKeywords, ProducerOptions
from nsqkit.producer.pool import Pool
from nsqkit.producer.publisher import CLOSED, Publisher
from nsqkit.producer.stats import ProducerStats
from nsqkit.wire.commands import NOP, encode_deferred_publish, encode_multi_publish, encode_publish

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer
    from nsqkit.producer.pool_connection import Receipt

REQUEST_TIMEOUT = 5.0
"""Seconds for creating a topic or a channel; what nsqd has for its own requests."""


class Producer:
    """Publishes to nsqds, for ``async with``, on asyncio and trio.

    Args:
        addresses: one ``host:port`` or more; ``policy`` chooses one for each publish.
        nsqd_tcp_addresses: more of them, as a list, such as ``load_settings`` returns.
        nsqd_http_addresses: HTTP addresses of the same nsqds, for ``ensure_topic`` and ``ensure_channel``.
        serializer: makes the body of a published value, see ``nsqkit.client.serializers``; by default bodies are bytes.
        clock: the time; by default the real one.
        dial: connects to an address; by default over TCP or a Unix socket.
        random: draws reconnect delays, and for the policy ``random``; by default seeded by the system.
        options: see ``ProducerOptions``.

    Attributes:
        options: all of its options.
        pool: its connections, once it was entered; for the modules of this package.

    Raises:
        OptionError: an address or an option that cannot be used.

    Entering returns at once. Connections are made meanwhile, and again when they are lost, after delays that grow
    exponentially, with full jitter. Leaving waits up to 5 seconds for answers.
    """

    def __init__(
        self,
        *addresses: str,
        nsqd_tcp_addresses: Sequence[str] = (),
        nsqd_http_addresses: Sequence[str] = (),
        serializer: Serializer[Any, Any] | None = None,
        clock: Clock | None = None,
        dial: Dial | None = None,
        random: Random | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        self._addresses = unite_addresses(addresses, nsqd_tcp_addresses, "nsqd_tcp_addresses")
        self.options = make_options(ProducerOptions, dict(options))
        check_tools(clock=clock, dial=dial, random=random, serializer=serializer)
        self._daemons = daemons_at(
            nsqd_http_addresses,
            connect_timeout=self.options.dial_timeout,
            request_timeout=REQUEST_TIMEOUT,
            clock=clock,
        )
        self._bodies = Bodies(
            serializer, max_msg_size=self.options.max_msg_size, max_body_size=self.options.max_body_size
        )
        self._clock = clock
        self._dial = Dialler(self.options, dial)
        self._random = random or Random()
        self._identity = self.options.identify_request(socket.gethostname())
        self._plain_size_max = 0 if serializer else self.options.max_msg_size
        self._lingers = self.options.linger > 0
        self._publish_timeout = self.options.publish_timeout
        self.pool: Pool | None = None
        self._publisher: Publisher | None = None
        self._is_entered = False

    # ---- publishing ----------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, body: Any, *, key: str | Bytes | None = None, timeout: Seconds | None = None
    ) -> None:
        """Publish one message.

        Args:
            topic: its topic.
            body: 1 to ``max_msg_size`` bytes, as bytes, bytearray or memoryview; or an object for the serializer.
            key: with the policy ``by-key``, publishes with the same key go to the same nsqd.
            timeout: seconds, instead of ``publish_timeout``; 0 for no limit.

        Raises:
            OptionError: a name or a body that nsqd would refuse; nothing was sent.
            NotConnected: there was no connection for ``connect_timeout`` seconds; the message has not arrived.
            BrokerError: the broker refused.
            ConnectionLost: the connection was lost before the answer; the message may have arrived.
            PublishTimeout: there was no answer in time; the message may have arrived.
            Closed: outside of ``async with``.
        """
        data, lane = self._lay_out(topic, body)
        if timeout is None and not self._publish_timeout and key is None:  # the common case, with one call less
            await (self._publisher or self._opened()).publish(lane, data, None, 1)
        else:
            await self._publish(lane, data, 1, key, timeout)

    async def multi_publish(
        self,
        topic: str,
        bodies: Sequence[Any],
        *,
        key: str | Bytes | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Publish messages in one command, all or none; otherwise as ``publish``.

        There is at least one body. Each has 1 to ``max_msg_size`` bytes, and all together at most ``max_body_size``.
        """
        data = self._bodies.take_all(bodies)
        await self._publish(None, encode_multi_publish(topic_name(topic), data), len(data), key, timeout)

    async def deferred_publish(
        self,
        topic: str,
        body: Any,
        delay: Seconds,
        *,
        key: str | Bytes | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Publish one message that is delivered after ``delay`` seconds; otherwise as ``publish``.

        ``delay`` is 0 to ``max_defer_timeout``, rounded to milliseconds.
        """
        data, milliseconds = self._bodies.take(body), delay_ms(delay, self.options.max_defer_timeout)
        await self._publish(None, encode_deferred_publish(topic_name(topic), data, milliseconds), 1, key, timeout)

    def publish_nowait(self, topic: str, body: Any, *, key: str | Bytes | None = None) -> Receipt:
        """Publish one message without waiting, and return a receipt, which gets the answer.

        The message is sent once. Only with ``linger`` it is sent again, if the broker has not kept it because of
        another message. Leaving the producer waits for its answer, as for all others.

        Args:
            topic: as in ``publish``.
            body: as in ``publish``.
            key: as in ``publish``.

        Raises:
            OptionError: as in ``publish``.
            WouldWait: there is no connection, or ``max_outstanding_bytes`` are reached; nothing was sent.
            Closed: outside of ``async with``.
        """
        data, lane = self._lay_out(topic, body)
        publisher = self._publisher or self._opened()
        return publisher.publish_nowait(lane, data, None if key is None else encode_key(key), 1)

    def multi_publish_nowait(self, topic: str, bodies: Sequence[Any], *, key: str | Bytes | None = None) -> Receipt:
        """Publish messages in one command without waiting, all or none; otherwise as ``publish_nowait``."""
        data = self._bodies.take_all(bodies)
        command = encode_multi_publish(topic_name(topic), data)
        return self._opened().publish_nowait(None, command, encode_key(key), len(data))

    def deferred_publish_nowait(
        self, topic: str, body: Any, delay: Seconds, *, key: str | Bytes | None = None
    ) -> Receipt:
        """Publish one message that is delivered later without waiting; otherwise as ``publish_nowait``."""
        data, milliseconds = self._bodies.take(body), delay_ms(delay, self.options.max_defer_timeout)
        command = encode_deferred_publish(topic_name(topic), data, milliseconds)
        return self._opened().publish_nowait(None, command, encode_key(key), 1)

    # ---- connections, topics and statistics ----------------------------------------------------------------------

    async def ping(self) -> None:
        """Wait for a connection, and send a NOP on each; a dead connection fails then.

        Raises:
            NotConnected: there was no connection for ``connect_timeout`` seconds.
            Closed: outside of ``async with``.
        """
        publisher = self._opened()
        await publisher.wait_ready()
        for connection in publisher.connections:
            connection.send(NOP)

    async def wait_connected(self, timeout: Seconds | None = None) -> None:
        """Return when there is a connection to at least one nsqd, after its handshake.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            NotConnected: there was none in time; the text has each address with its last error.
            Closed: outside of ``async with``, or it was left meanwhile.
        """
        publisher, seconds = self._opened(), take_timeout(timeout)
        assert self._clock is not None
        with move_on_after(self._clock, seconds) as scope:
            await publisher.wait_connected()
        if scope.cancelled_caught:
            raise publisher.not_connected(seconds or 0.0)

    async def ensure_topic(self, topic: str) -> None:
        """Create a topic on every nsqd of ``nsqd_http_addresses`` that does not have it.

        Raises:
            OptionError: a wrong name, or there are no ``nsqd_http_addresses``.
            RequestFailed: an nsqd cannot be reached, or refuses.
        """
        await create_topic(self._daemons, topic)

    async def ensure_channel(self, topic: str, channel: str) -> None:
        """Create a channel and its topic on every nsqd of ``nsqd_http_addresses`` that does not have them.

        Messages that are published from then on wait in the channel for its first consumer.

        Raises:
            OptionError: a wrong name, or there are no ``nsqd_http_addresses``.
            RequestFailed: an nsqd cannot be reached, or refuses.
        """
        await create_channel(self._daemons, topic, channel)

    def stats(self) -> ProducerStats:
        """Return the state of each connection and the counts of publishes."""
        publisher = self._publisher
        if publisher is None:
            return ProducerStats(nsqds=(), outstanding_bytes=0, waiting_count=0)
        return ProducerStats(
            nsqds=tuple(connection.stats() for connection in publisher.connections),
            outstanding_bytes=publisher.window.size if publisher.window else 0,
            waiting_count=publisher.waiting_count,
        )

    @property
    def nsqd_tcp_addresses(self) -> tuple[str, ...]:
        """The addresses of the nsqds."""
        return tuple(self._addresses)

    @property
    def is_connected(self) -> bool:
        """True while there is a connection to at least one nsqd, after its handshake."""
        return self._publisher is not None and any(one.is_connected for one in self._publisher.connections)

    # ---- entering and leaving ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Producer:
        if self._is_entered:
            raise Closed("the producer is entered already; make another one")
        self._clock = self._clock or LoopClock()
        self.pool = Pool(
            self._addresses,
            self.options,
            self._identity,
            clock=self._clock,
            dial=self._dial,
            random=self._random,
        )
        await self.pool.start()
        self._is_entered = True
        self._publisher = self.pool.publisher
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        """Wait for answers and close; nothing is left running."""
        assert self.pool is not None
        try:
            return await self.pool.end(*exc_info)
        finally:
            self._is_entered = False

    # ---- internals -----------------------------------------------------------------------------------------------

    def _lay_out(self, topic: str, body: Any) -> tuple[bytes, bytes | None]:
        """Return the command and None; where messages linger, the body and the topic's name."""
        # This is called a hundred thousand times a second; nearly all calls need these three checks only.
        try:
            name = known_topic_name(topic)
        except TypeError:
            name = topic_name(topic)
        plain = type(body) is bytes and 0 < len(body) <= self._plain_size_max
        data = body if plain else self._bodies.take(body)
        return (data, name) if self._lingers else (encode_publish(name, data), None)

    async def _publish(
        self, topic: bytes | None, data: bytes, count: int, key: str | Bytes | None, timeout: Seconds | None
    ) -> None:
        seconds = self._publish_timeout if timeout is None else take_seconds("timeout", timeout, TIMEOUT_MAX)
        publishing = self._opened().publish(topic, data, encode_key(key), count)
        if not seconds:
            await publishing
            return
        assert self._clock is not None
        with move_on_after(self._clock, seconds):
            await publishing
            return
        raise PublishTimeout(f"no answer within {seconds:g} seconds; the message may have arrived")

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise Closed(CLOSED)
        return self._publisher
