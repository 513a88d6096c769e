"""The producer over HTTP, for programs that publish seldom or can only use HTTP.

It has the same methods and checks as ``Producer``. Each request has its own connection, so there is nothing to
open or close, and it is many times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, Unpack

import attrs

from nsqkit.errors import RequestFailed, RequestRefused
from nsqkit.http.answers import read_message
from nsqkit.options.checks import check_tools, make_options
from nsqkit.options.durations import Seconds
from nsqkit.options.fields import seconds, whole
from nsqkit.producer.arguments import Bodies, delay_ms, topic_name, unite_addresses
from nsqkit.producer.creation import create_channel, create_topic, daemons_at
from nsqkit.wire.commands import encode_batch

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.client.serializers import Serializer

_TRY_ANOTHER: Final = range(500, 600)
"""Statuses after which another nsqd may accept the publish; 4xx is about the publish."""


class HTTPProducerKeywords(TypedDict, total=False):
    """The options of ``HTTPProducerOptions`` as keyword arguments."""

    connect_timeout: Seconds
    publish_timeout: Seconds
    publish_attempts: int
    max_msg_size: int
    max_body_size: int
    max_defer_timeout: Seconds


@attrs.frozen(kw_only=True)
class HTTPProducerOptions:
    """The options of a producer over HTTP.

    Attributes:
        connect_timeout: seconds to make a connection, 0.1 to 300; 2 as in nsqd's clients.
        publish_timeout: seconds for a request with its answer, 0.1 to 3600.
        publish_attempts: requests for one publish, 1 to 100. With more than 1, the next nsqd gets it when one does not
            answer or has its own error, and it may arrive **more than once**.
        max_msg_size: the limit of a message, in bytes; nsqd's default, 1 MiB.
        max_body_size: the limit of the messages of one call together, in bytes; nsqd's default, 5 MiB.
        max_defer_timeout: the longest delay of a deferred publish, in seconds; nsqd's default for
            ``--max-req-timeout``, 1 hour.
    """

    connect_timeout: float = seconds(2.0, 0.1, 300.0)
    publish_timeout: float = seconds(5.0, 0.1, 3600.0)
    publish_attempts: int = whole(1, 1, 100)
    max_msg_size: int = whole(1 << 20, 1, 1 << 30)
    max_body_size: int = whole(5 << 20, 9, 1 << 30)
    max_defer_timeout: float = seconds(3600.0, 0.0, 1e9)

    addresses: ClassVar[tuple[str, ...]] = ("nsqd_http_addresses",)
    """Keyword arguments that are lists of addresses."""


class HTTPProducer:
    """Publishes to nsqds over HTTP or HTTPS, each in turn.

    Args:
        addresses: one ``host:port``, URL or Unix socket, or more of them.
        nsqd_http_addresses: more of them, as a list.
        serializer: makes a body of each published value, see ``nsqkit.client.serializers``; by default bytes.
        tls_context: for https; by default the system's certificates are trusted.
        options: see ``HTTPProducerOptions``.

    Raises:
        OptionError: an address or an option that cannot be used.
    """

    def __init__(
        self,
        *addresses: str,
        nsqd_http_addresses: Sequence[str] = (),
        serializer: Serializer[Any, Any] | None = None,
        tls_context: SSLContext | None = None,
        **options: Unpack[HTTPProducerKeywords],
    ) -> None:
        self.options = make_options(HTTPProducerOptions, dict(options))
        check_tools(serializer=serializer)
        wanted = unite_addresses(addresses, nsqd_http_addresses, "nsqd_http_addresses")
        self._daemons = daemons_at(
            wanted,
            connect_timeout=self.options.connect_timeout,
            request_timeout=self.options.publish_timeout,
            tls_context=tls_context,
        )
        self._bodies = Bodies(
            serializer, max_msg_size=self.options.max_msg_size, max_body_size=self.options.max_body_size
        )
        self._next = 0

    async def publish(self, topic: str, body: Any) -> None:
        """Publish one message.

        Args:
            topic: its topic.
            body: 1 to ``max_msg_size`` bytes; or an object for the serializer.

        Raises:
            OptionError: a name or a body that nsqd would refuse; nothing was sent.
            RequestRefused: nsqd refused.
            RequestFailed: nsqd could not be reached, or did not answer as nsqd does; the message may have arrived.
        """
        await self._post("/pub", {"topic": topic_name(topic).decode()}, self._bodies.take(body))

    async def multi_publish(self, topic: str, bodies: Sequence[Any]) -> None:
        """Publish messages in one request, all or none; otherwise as ``publish``.

        There is at least one body. Each has 1 to ``max_msg_size`` bytes, and all together at most ``max_body_size``.
        """
        batch = encode_batch(self._bodies.take_all(bodies))
        await self._post("/mpub", {"topic": topic_name(topic).decode(), "binary": "true"}, batch)

    async def deferred_publish(self, topic: str, body: Any, delay: Seconds) -> None:
        """Publish one message that is delivered after ``delay`` seconds; otherwise as ``publish``.

        ``delay`` is 0 to ``max_defer_timeout``, rounded to milliseconds.
        """
        milliseconds = delay_ms(delay, self.options.max_defer_timeout)
        params = {"topic": topic_name(topic).decode(), "defer": str(milliseconds)}
        await self._post("/pub", params, self._bodies.take(body))

    async def ping(self) -> None:
        """Return when every nsqd has answered ``/ping`` with OK.

        Raises:
            RequestFailed: an nsqd could not be reached, or has an error.
        """
        for daemon in self._daemons:
            await daemon.request("GET", "/ping")

    async def ensure_topic(self, topic: str) -> None:
        """Create a topic on every nsqd that does not have it.

        Raises:
            OptionError: a wrong name.
            RequestFailed: an nsqd cannot be reached, or refuses.
        """
        await create_topic(self._daemons, topic)

    async def ensure_channel(self, topic: str, channel: str) -> None:
        """Create a channel and its topic on every nsqd that does not have them.

        Raises:
            OptionError: a wrong name.
            RequestFailed: an nsqd cannot be reached, or refuses.
        """
        await create_channel(self._daemons, topic, channel)

    async def _post(self, path: str, params: dict[str, str], body: bytes) -> None:
        """Publish to the next nsqd, and to those after it while there are attempts left."""
        first = self._next
        self._next += 1
        failure: RequestFailed | None = None
        for attempt in range(self.options.publish_attempts):
            # Not the next one of all publishes: that may be one where this publish was tried before.
            daemon = self._daemons[(first + attempt) % len(self._daemons)]
            try:
                answer = await daemon.request("POST", path, params, body=body)
                if answer == b"OK":
                    return
                # Not of an nsqd: perhaps of a proxy that requires a login.
                raise RequestFailed(f"{daemon}{path}: the answer is {read_message(answer)!r}; nsqd's is 'OK'")
            except RequestFailed as error:
                # That the message may have arrived is the outcome, however later attempts fail.
                if failure is None or isinstance(failure, RequestRefused):
                    failure = error
                if isinstance(error, RequestRefused) and error.status not in _TRY_ANOTHER:
                    break  # it is about the message
        assert failure is not None
        raise failure
