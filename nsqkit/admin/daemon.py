"""The common part of the HTTP clients of nsqd and nsqlookupd.

Names are checked before a request is sent. Failures are errors of nsqkit: ``RequestRefused`` with the daemon's own
message, ``RequestFailed`` otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsqkit.errors import RequestFailed
from nsqkit.http.daemon import Daemon
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.http.daemon import HTTPRequest
    from nsqkit.options.durations import Seconds

T = TypeVar("T")

ANSWER_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes of an answer, ten times the stats of an nsqd with ten thousand topics."""


class DaemonAdmin:
    """A client of one daemon's HTTP routes. It keeps no connection open, and any number of tasks may use it.

    Args:
        address: ``host:port``, a URL of http or https, with user and password if needed, or the path of a Unix socket.
        tls_context: for https, an ``ssl.SSLContext``; by default the system's authorities are trusted.
        authorization: the Authorization header, as from ``nsqkit.http.daemon.bearer``; empty for none.
        connect_timeout: seconds for the connection.
        request_timeout: seconds for the whole request.
        http_request: sends the requests in place of nsqkit's client: an async function of method, URL, headers and
            body that returns status and body.

    Raises:
        OptionError: an invalid address or option.
    """

    def __init__(
        self,
        address: str,
        *,
        tls_context: SSLContext | None = None,
        authorization: str = "",
        connect_timeout: Seconds = 2.0,
        request_timeout: Seconds = 5.0,
        http_request: HTTPRequest | None = None,
    ) -> None:
        self._daemon = Daemon(
            address,
            tls_context=tls_context,
            authorization=authorization,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            body_max=ANSWER_SIZE_MAX,
            http_request=http_request,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._daemon}>"

    async def ping(self) -> None:
        """Return if the daemon is healthy.

        Raises:
            RequestRefused: it is not; the message has the reason.
            RequestFailed: there is no answer.
        """
        await self._daemon.request("GET", "/ping")

    async def _post(self, path: str, params: Mapping[str, str]) -> None:
        await self._daemon.request("POST", path, params)

    async def _get(self, path: str, params: Mapping[str, str] | None, decode: Callable[[Mapping[str, Any]], T]) -> T:
        document = await self._daemon.request_document("GET", path, params)
        try:
            return decode(document)
        except ValueError as error:
            raise RequestFailed(f"{self._daemon}{path}: {error}") from error


def topic_params(topic: str) -> dict[str, str]:
    """Return the query for a topic; raise OptionError for an invalid name."""
    return {"topic": encode_topic(topic).decode()}


def channel_params(topic: str, channel: str) -> dict[str, str]:
    """Return the query for a channel; raise OptionError for an invalid name."""
    return {**topic_params(topic), "channel": encode_channel(channel).decode()}
