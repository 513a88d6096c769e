"""One HTTP request and its response, for auth servers, nsqds and nsqlookupds.

Every failure (an invalid URL, an unknown name, a certificate, a slow or too talkative server) is raised as
``RequestFailed``. Its text never contains the query, a user or a password, since they may be secrets. Redirects are
followed as by Go's client, without the Authorization header on other servers, but not with GET after a POST,
except by ``fetch_v1``. The environment's proxies are not used.
Importing h11 takes a while, so users import this module when they send their first request.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from ssl import SSLCertVerificationError, SSLError
from string import punctuation
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, Unpack
from urllib.parse import SplitResult, quote, unquote_to_bytes, urljoin, urlsplit

import anyio
import anyio.to_thread
import attrs
import h11
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit import __version__
from nsqkit.clock import Clock, move_on_after
from nsqkit.errors import RequestFailed, WrongServer
from nsqkit.http.messages import Response
from nsqkit.transport.address import shown_url, url_fault
from nsqkit.transport.tcp import connect_path, connect_tcp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from anyio.abc import ByteStream

ACCEPT_V1: Final = ("Accept", "application/vnd.nsq; version=1.0")
"""The header with which old daemons answer without an envelope; nsqd and nsqadmin send it."""

RECEIVE_SIZE: Final = 65536
"""The most bytes that one read returns."""

TURN_EVENTS: Final = 50
"""Events of h11 after which the other tasks get a turn; each chunk of a body is an event that takes over 10 µs."""

BEGINNING_LENGTH: Final = 3
"""Bytes of an answer that show whether it is HTTP; no answer has fewer."""

REDIRECTS_MAX: Final = 10
"""The number of redirects that are followed, as in Go's client."""

SHOWN_LENGTH_MAX: Final = 200
"""Bytes of a refusal's body that are quoted in the error."""

_PORTS: Final = {"http": 80, "https": 443}
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""The reasons that OpenSSL gives if the first bytes of a server are not TLS."""

_GET_NEXT: Final = frozenset((301, 302, 303))
_SAME_NEXT: Final = frozenset((307, 308))


class _Options(TypedDict):
    """The options of a request.

    Attributes:
        clock: the time of the two timeouts.
        connect_timeout: seconds for the TCP connection; None for no limit.
        request_timeout: seconds for everything together; None for no limit.
        body_max: the most bytes of the response's body.
        tls: for https; by default the system's certificates are trusted.
        socket_path: the Unix socket of the server, ``@name`` for one without a file; the URL's host is only sent then.
    """

    clock: Clock
    connect_timeout: float | None
    request_timeout: float | None
    body_max: int
    tls: NotRequired[SSLContext | None]
    socket_path: NotRequired[str]


async def fetch_v1(url: str, *, document: bytes | None = None, **options: Unpack[_Options]) -> bytes:
    """Return the body of a successful answer in the form of NSQ's daemons: to GET, or to POST with a JSON document.

    The options are those of ``fetch``; another status than 200 is a RequestFailed, too.
    """
    response = await fetch(
        "GET" if document is None else "POST",
        url,
        headers=(ACCEPT_V1,) if document is None else (ACCEPT_V1, ("Content-Type", "application/json")),
        body=document or b"",
        get_after_post=True,
        **options,
    )
    if response.status != 200:
        shown = response.body[:SHOWN_LENGTH_MAX].decode("utf-8", "replace").strip()
        raise RequestFailed(f"got response {response.status} {shown}")
    return response.body


async def fetch(
    method: str,
    url: str,
    *,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    get_after_post: bool = False,
    **options: Unpack[_Options],
) -> Response:
    """Send one request and return its response, after redirects if there are any.

    Args:
        method: ``GET``, ``POST``, …
        url: of http or https; a user and password in it become an ``Authorization`` header, unless there is one.
        headers: further headers besides Host, Content-Length and Connection.
        body: sent unless it is empty.
        get_after_post: whether the redirects that Go follows with GET are followed after a POST or PUT. The response
            then does not show whether that had an effect. Otherwise such a redirect is a failure.
        options: see ``_Options``.

    Returns:
        The response, with the names of its headers in lower case.

    Raises:
        RequestFailed: there is no response; the text says why.
    """
    target = _Target.of(url)
    request_timeout = options["request_timeout"]
    with move_on_after(options["clock"], request_timeout):
        for _ in range(REDIRECTS_MAX + 1):
            response = await _send(method, target, headers, body, options)
            location = next((value for name, value in response.headers if name == "location"), "")
            if not location or response.status not in _GET_NEXT | _SAME_NEXT:
                return response
            before, target = target, target.redirected(location)
            if response.status in _GET_NEXT:
                if method not in {"GET", "HEAD"} and not get_after_post:
                    shown = f"the {method} got response {response.status}, a redirect to {target}"
                    raise RequestFailed(f"{before}: {shown}")
                method, body = "GET", b""
            if target.origin != before.origin:
                headers = [pair for pair in headers if pair[0].lower() != "authorization"]
        raise RequestFailed(f"{target}: stopped after {REDIRECTS_MAX} redirects")
    raise RequestFailed(f"{target}: no answer within {request_timeout:g} seconds")


@attrs.frozen
class _Target:
    """A parsed URL."""

    url: str
    parts: SplitResult
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> _Target:
        shown = shown_url(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RequestFailed(f"{shown!r} is not a URL: {url_fault(url, error)}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise RequestFailed(f"{shown!r} is not a URL of http or https with a host")
        return cls(url, parts, parts.hostname, _PORTS[parts.scheme] if port is None else port)

    def redirected(self, location: str) -> _Target:
        """Return the target of a redirect; raise RequestFailed if there is none."""
        try:
            return _Target.of(urljoin(self.url, location))
        except ValueError as error:
            shown = f"{shown_url(location)!r}: {url_fault(location, error)}"
            raise RequestFailed(f"{self}: the server redirects to {shown}") from None

    def __str__(self) -> str:
        """Return the URL without query, user and password, for errors."""
        return f"{self.parts.scheme}://{self._address}{self.parts.path}"

    @property
    def _address(self) -> str:
        return self.parts.netloc.rpartition("@")[2]

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.parts.scheme, self.host, self.port

    def headers(self, others: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers of a request, with ``others`` at the end."""
        headers = [("Host", self._address), ("User-Agent", f"nsqkit/{__version__}"), ("Connection", "close")]
        user = self.parts.netloc.rpartition("@")[0]
        if user and all(name.lower() != "authorization" for name, _ in others):
            # A missing password is sent as an empty one.
            name, _, password = user.partition(":")
            pair = unquote_to_bytes(name) + b":" + unquote_to_bytes(password)
            headers.append(("Authorization", f"Basic {b64encode(pair).decode()}"))
        return [*headers, *others]

    def path_and_query(self) -> str:
        query = f"?{self.parts.query}" if self.parts.query else ""
        return quote((self.parts.path or "/") + query, safe=punctuation)


async def _send(
    method: str, target: _Target, headers: Sequence[tuple[str, str]], body: bytes, options: _Options
) -> Response:
    length = [("Content-Length", str(len(body)))] if body else []
    try:
        request = h11.Request(
            method=method, target=target.path_and_query(), headers=target.headers([*length, *headers])
        )
        stream = await _connect(target, options)
        try:
            if target.parts.scheme == "https":
                stream = await _wrap(stream, target.host, options.get("tls"))
            return await _exchange(stream, request, body, options["body_max"])
        finally:
            await anyio.aclose_forcefully(stream)
    except (BrokenResourceError, ClosedResourceError, EndOfStream) as error:
        raise RequestFailed(f"{target}: the server has closed the connection") from error
    except WrongServer as error:
        raise WrongServer(f"{target}: {error}") from None
    except SSLError as error:
        raise WrongServer(f"{target}: {_tls_failure(error)}") from error
    except (OSError, ValueError, h11.ProtocolError) as error:
        raise RequestFailed(f"{target}: {error}") from error


async def _connect(target: _Target, options: _Options) -> ByteStream:
    with move_on_after(options["clock"], options["connect_timeout"]):
        if path := options.get("socket_path"):
            return await connect_path(path)
        return await connect_tcp(target.host, target.port)
    raise RequestFailed(f"{target}: no connection within {options['connect_timeout']:g} seconds")


async def _wrap(stream: ByteStream, host: str, context: SSLContext | None) -> ByteStream:
    import ssl  # here, since most programs do not use TLS

    from anyio.streams.tls import TLSStream

    if context is None:
        # In a thread, since it reads the system's certificates from the disk.
        context = await anyio.to_thread.run_sync(ssl.create_default_context)
    # Many servers close without the close_notify of the standard; HTTP itself marks the end of a body.
    return await TLSStream.wrap(stream, hostname=host, ssl_context=context, standard_compatible=False)


async def _exchange(stream: ByteStream, request: h11.Request, body: bytes, body_max: int) -> Response:
    http = h11.Connection(h11.CLIENT)
    content = [h11.Data(data=body)] if body else []
    data = b"".join(http.send(event) or b"" for event in (request, *content, h11.EndOfMessage()))
    async with anyio.create_task_group() as tasks:
        # A server may refuse a long body before it has read it, and not read the rest.
        tasks.start_soon(_send_request, stream, data)
        try:
            outcome: Response | Exception = await _receive_response(stream, http, body_max)
        except Exception as error:  # the task group would wrap it in an ExceptionGroup
            outcome = error
        tasks.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _send_request(stream: ByteStream, data: bytes) -> None:
    # The receiving side has the response, or the reason why there is none.
    with suppress(BrokenResourceError, ClosedResourceError, EndOfStream, SSLError):
        await stream.send(data)


async def _receive_response(stream: ByteStream, http: h11.Connection, body_max: int) -> Response:
    http.receive_data(await _receive_beginning(stream))
    head: h11.Response | None = None
    received = bytearray()
    event_count = 0
    while not isinstance(event := await _next_event(stream, http), h11.EndOfMessage):
        event_count += 1
        if event_count % TURN_EVENTS == 0:
            await anyio.lowlevel.checkpoint()
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            received += event.data
            if len(received) > body_max:
                raise ValueError(f"the response has more than {body_max} bytes")
    assert head is not None
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    return Response(head.status_code, headers, bytes(received))


async def _receive_beginning(stream: ByteStream) -> bytes:
    """Return the first bytes of an answer; raise WrongServer if they are of NSQ's protocol or of TLS."""
    data = b""
    while len(data) < BEGINNING_LENGTH:
        data += await stream.receive(RECEIVE_SIZE)
    if data.startswith(b"\0\0\0"):  # the size of nsqd's error frame for an unknown magic
        raise WrongServer(
            "the server speaks NSQ's TCP protocol; give its HTTP port, by default 4161 for nsqlookupd and 4151 for nsqd"
        )
    if data.startswith((b"\x15\x03", b"\x16\x03")):
        raise WrongServer("the server speaks TLS; give a URL that begins with https://")
    return data


def _tls_failure(error: SSLError) -> str:
    if isinstance(error, SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if error.reason in _NOT_TLS:
        return "the server does not speak TLS; give a URL that begins with http://"
    return f"TLS failed: {error.reason or error}"


async def _next_event(stream: ByteStream, http: h11.Connection) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        try:
            http.receive_data(await stream.receive(RECEIVE_SIZE))
        except EndOfStream:
            if http.their_state is h11.SEND_RESPONSE:
                raise  # h11's own error for this is hard to understand
            http.receive_data(b"")
    return event
