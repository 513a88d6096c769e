"""What the clients of both daemons have in common.

The rule it guards: a name is checked before anything is sent, and what comes back is a value or one of nsqkit's
errors: ``RequestRefused`` with the daemon's own word if it has said no, ``RequestFailed`` otherwise.
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
"""Bytes of an answer; the stats of an nsqd with ten thousand topics are a tenth of it."""


class DaemonAdmin:
    """A client of one daemon's HTTP routes. It holds nothing open, and any number of tasks may use it.

    Args:
        address: ``host:port``, a URL of http or https, perhaps with user and password, or the path of a Unix socket.
        tls_context: for https, an ``ssl.SSLContext`` with authority, client certificate and rules; by default the
            system's authorities are trusted.
        authorization: the Authorization header, as ``nsqkit.http.daemon.bearer`` makes it; empty for none.
        connect_timeout: seconds until a connection must stand.
        request_timeout: seconds until the whole answer must be there.
        http_request: sends the requests in the place of nsqkit's client: an async function of method, URL, headers
            and body that returns status and body.

    Raises:
        OptionError: an address or an option that cannot be used.
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
        self._daemon = Daemon.of(
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
        """Return if the daemon is well.

        Raises:
            RequestRefused: it is not; its message says why.
            RequestFailed: there is no answer.
        """
        await self._daemon.ask("GET", "/ping")

    async def _post(self, path: str, params: Mapping[str, str]) -> None:
        await self._daemon.ask("POST", path, params)

    async def _get(
        self, path: str, params: Mapping[str, str] | None, decode: Callable[[Mapping[str, Any]], T]
    ) -> T:
        document = await self._daemon.ask_document("GET", path, params)
        try:
            return decode(document)
        except ValueError as error:
            raise RequestFailed(f"{self._daemon}{path}: {error}") from error


def topic_params(topic: str) -> dict[str, str]:
    """Return the query that names a topic.

    Raises:
        OptionError: the name cannot be one.
    """
    return {"topic": encode_topic(topic).decode()}


def channel_params(topic: str, channel: str) -> dict[str, str]:
    """Return the query that names a channel.

    Raises:
        OptionError: a name cannot be one.
    """
    return {**topic_params(topic), "channel": encode_channel(channel).decode()}
