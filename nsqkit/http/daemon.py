"""An nsqd or nsqlookupd, as its HTTP clients see it: its address, credentials and timeouts.

Every failure is raised as ``RequestFailed``, or ``RequestRefused`` if the daemon has refused. Secrets (user, password,
Authorization header, query) appear in no error and no repr.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

import anyio.to_thread

from nsqkit.clock import Clock, LoopClock, move_on_after
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.http.answers import Refusal, decode_document, read_message
from nsqkit.options.durations import Seconds, plain_seconds
from nsqkit.transport.address import is_path, is_socket_path, shown_url, shown_value, url_fault

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Daemon", "HTTPRequest", "basic", "bearer"]

HTTPRequest: TypeAlias = Callable[[str, str, Mapping[str, str], bytes], Awaitable[tuple[int, bytes]]]
"""Sends a request in place of nsqkit's client: takes method, URL, headers and body, returns status and body.

Any exception means that there is no answer.
"""

ACCEPT_V1: Final = "application/vnd.nsq; version=1.0"
"""The header with which old daemons answer without an envelope."""

_SCHEMES: Final = ("http", "https")

_USER: Final = re.compile(r"[^/.@][^/]*:.*@", re.DOTALL)
"""A user and a password, in which a slash is possible; the path of a Unix socket begins otherwise."""


def bearer(token: str) -> str:
    """Return the Authorization header of a token."""
    return f"Bearer {token}"


def basic(user: str, password: str) -> str:
    """Return the Authorization header of a user and a password."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


class Daemon:
    """One nsqd or nsqlookupd.

    Args:
        address: ``host:port``; a URL of http or https, with user, password, a path before those of the routes and a
            query if needed (a ``/lookup`` at the end of the path, as go-nsq demands it, is removed); or the path of a
            Unix socket, with a slash in it, or ``@name`` for one without a file.
        tls_context: for https; by default the system's certificates are trusted.
        authorization: the Authorization header, instead of user and password in the URL; empty for none.
        connect_timeout: seconds for the connection.
        request_timeout: seconds for everything together.
        body_max: the most bytes of an answer.
        http_request: sends the requests; None for nsqkit's own client. Not for a Unix socket.
        clock: the time of the timeouts; by default the real time.

    Attributes:
        url: scheme, host, and the path before that of a route; it may contain a password.
        query: the query before that of a route; it may contain a secret.
        socket_path: the path of a Unix socket; empty for TCP.
        name: the URL without user, password and query, or the path of a Unix socket; free of secrets.
        key: the identity of the daemon, equal for all forms of its address; it may contain secrets.

    Raises:
        OptionError: an invalid address, header, context or time.
    """

    def __init__(
        self,
        address: str,
        *,
        tls_context: SSLContext | None = None,
        authorization: str = "",
        connect_timeout: Seconds,
        request_timeout: Seconds,
        body_max: int,
        http_request: HTTPRequest | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url, self.query, self.name, self.socket_path = _parse_address(address)
        if self.socket_path and http_request is not None:
            raise OptionError(f"address {self.name!r} is a Unix socket, which an http_request cannot use")
        _check_authorization(authorization)
        if tls_context is not None and not hasattr(tls_context, "wrap_bio"):
            raise OptionError(f"tls_context is {tls_context!r}; allowed is an ssl.SSLContext")
        if http_request is not None and not callable(http_request):
            raise OptionError(f"http_request is {http_request!r}; allowed is None or an async function")
        self.key = self.socket_path or f"{self.url}?{self.query}"
        self.tls_context = tls_context
        self.authorization = authorization
        self.connect_timeout = _seconds("connect_timeout", connect_timeout)
        self.request_timeout = _seconds("request_timeout", request_timeout)
        self.body_max = body_max
        self.http_request = http_request
        self.clock = clock

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Daemon {self.name}>"

    async def request(
        self, method: str, path: str, params: Mapping[str, str] | None = None, *, body: bytes = b""
    ) -> bytes:
        """Return the body of a successful answer.

        Args:
            method: ``GET``, ``POST`` or ``PUT``.
            path: the path of a route: ``/topic/create``.
            params: the query of the route.
            body: sent unless it is empty.

        Raises:
            RequestRefused: the answer has another status than 200.
            RequestFailed: there is no answer.
        """
        query = "&".join(filter(None, (self.query, urlencode(params or {}))))
        headers = {"Accept": ACCEPT_V1}
        if self.authorization:
            headers["Authorization"] = self.authorization
        send = self._fetch if self.http_request is None else self._delegate
        url = self.url + path + (f"?{query}" if query else "")
        status, answer = await send(method, url, headers, body)
        if status != 200:
            raise RequestRefused(self.name + path, status, read_message(answer))
        return answer

    async def request_document(
        self, method: str, path: str, params: Mapping[str, str] | None = None, *, body: bytes = b""
    ) -> dict[str, Any]:
        """Return the JSON object of a successful answer; see ``request``.

        Raises:
            RequestRefused: the answer is a refusal.
            RequestFailed: there is no answer, or it is not a JSON object.
        """
        answer = await self.request(method, path, params, body=body)
        try:
            return decode_document(answer)
        except Refusal as refusal:
            raise RequestRefused(self.name + path, *refusal.args) from None
        except ValueError as error:
            raise RequestFailed(f"{self.name}{path}: {error}") from error

    async def _fetch(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        from nsqkit.http.client import fetch  # here, since importing h11 takes a while

        if self.tls_context is None and url.startswith("https:"):
            import ssl

            # Once, and in a thread: it reads the system's certificates from the disk.
            self.tls_context = await anyio.to_thread.run_sync(ssl.create_default_context)
        response = await fetch(
            method,
            url,
            headers=list(headers.items()),
            body=body,
            clock=self.clock or LoopClock(),
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            body_max=self.body_max,
            tls=self.tls_context,
            socket_path=self.socket_path,
        )
        return response.status, response.body

    async def _delegate(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Send a request by the user's own client."""
        assert self.http_request is not None
        with move_on_after(self.clock or LoopClock(), self.request_timeout):
            try:
                status, answer = await self.http_request(method, url, headers, body)
            except Exception as error:
                raise RequestFailed(f"{self.name}: {self._without_secrets(repr(error))}") from error
            if not isinstance(status, int) or not isinstance(answer, bytes):
                raise RequestFailed(f"{self.name}: http_request returned neither status nor bytes")
            if len(answer) > self.body_max:
                raise RequestFailed(f"{self.name}: the response has more than {self.body_max} bytes")
            return status, answer
        raise RequestFailed(f"{self.name}: no answer within {self.request_timeout:g} seconds")

    def _without_secrets(self, text: str) -> str:
        user = urlsplit(self.url).netloc.rpartition("@")[0]
        for secret in filter(None, (self.authorization, self.query, user)):
            text = text.replace(secret, "...")
        return text


def _seconds(name: str, value: Seconds) -> float:
    number = plain_seconds(value)
    # Every comparison with NaN is false, so it is refused too.
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < math.inf:
        raise OptionError(f"{name} is {value!r}; allowed is a number of seconds above 0")
    return float(number)


def _check_authorization(authorization: str) -> None:
    """Refuse a header that is not of visible ASCII characters and blanks, with an OptionError that does not show it."""
    if (
        not isinstance(authorization, str)
        or not (authorization.isascii() and authorization.isprintable())
        or authorization != authorization.strip()
    ):
        raise OptionError("authorization is not the value of a header: a text of visible ASCII characters")


def _parse_address(address: str) -> tuple[str, str, str, str]:
    """Return the URL without query, the query, the name without secrets, and the path of a Unix socket."""
    if not isinstance(address, str):
        raise OptionError(f"address {shown_value(address)} is not a text")
    has_scheme = "://" in address
    if not has_scheme and is_path(address) and is_socket_path(address) and not _USER.match(address):
        return "http://localhost", "", address, address
    shown = shown_url(address)
    try:
        parts = urlsplit(address if has_scheme else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise OptionError(f"address {shown!r} is not host:port or a URL: {url_fault(address, error)}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname or (port is None and not has_scheme):
        raise OptionError(f"address {shown!r} is not host:port, a URL of http or https, or a path with a slash")
    path = parts.path.rstrip("/").removesuffix("/lookup")
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc}{path}", parts.query, f"{parts.scheme}://{host}{path}", ""
