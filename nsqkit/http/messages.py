"""Requests and responses as values, and the formats in which nsqd reads a query and writes an answer.

A handler gets and returns plain data; only the body of a request is read on demand. A query is parsed as in Go
(net/url, ParseQuery), so that the same queries are refused; answers have the form of nsqd's internal/http_api.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Protocol, TypeAlias

import attrs

from nsqkit import __version__
from nsqkit.errors import NSQError

REASONS: Final[Mapping[int, str]] = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
"""The reason phrase of each status in use."""

_HOST = re.compile(r"[0-9A-Za-z!$%&'()*+,\-.:;=\[\]_~]*")
"""The characters of a Host header (golang.org/x/net/http/httpguts, ValidHostHeader)."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_LENGTH_LIST = re.compile(rb"\ncontent-length:[^\n]*,", re.IGNORECASE)
PIECE_ITEMS: Final = 100
"""Keys of a JSON object in one piece, where it is sent in pieces."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPES = re.compile(rb"%([0-9A-Fa-f]{2})")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Go escapes these in JSON, so that it can be embedded in HTML and JavaScript.
_JSON_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})

PROGRAM: Final = ("Server", f"nsqkit/{__version__}")
"""The header that names nsqkit; ``version`` in ``/info`` is that of nsqd, since tools parse it."""

_NSQ_TYPE = ("X-Nsq-Content-Type", "nsq; version=1.0")
_TEXT_TYPE = ("Content-Type", "text/plain; charset=utf-8")
_JSON_TYPE = ("Content-Type", "application/json; charset=utf-8")
_HTML_TYPE = ("Content-Type", "text/html; charset=utf-8")
_GO_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


class HTTPError(NSQError):
    """A handler refuses the request.

    Attributes:
        status: the status of the answer.
        message: the message of the answer, one of NSQ's codes: ``INVALID_REQUEST``.
    """

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(f"{status} {message}: {reason}" if reason else f"{status} {message}")
        self.status = status
        self.message = message


class Body(Protocol):
    """The source of a request's body."""

    async def read(self, limit: int) -> bytes:
        """Return the next ``limit + 1`` bytes, or the rest of the body if that is less."""


@attrs.define(eq=False)
class StoredBody:
    """A body in memory."""

    data: bytes = b""

    async def read(self, limit: int) -> bytes:
        """Return the next ``limit + 1`` bytes, or the rest of the body if that is less."""
        data, self.data = self.data[: limit + 1], self.data[limit + 1 :]
        return data


@attrs.frozen
class Request:
    """A request; its body is read on demand.

    Attributes:
        method: as sent: ``POST``.
        target: path and query as sent: ``/pub?topic=t``.
        path: the decoded path: ``/pub``.
        raw_query: the encoded query, without the question mark.
        headers: names in lower case, and values, in the order received.
        remote_address: ``host:port`` of the client; empty if unknown.
        params: the values of the named parts of a route's path.
    """

    method: str
    target: str
    path: str
    raw_query: str
    headers: tuple[tuple[str, str], ...] = ()
    remote_address: str = ""
    params: Mapping[str, str] = attrs.Factory(dict)
    _body: Body = attrs.field(factory=StoredBody, eq=False, repr=False)

    @classmethod
    def of(
        cls,
        method: str,
        target: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        body: Body | None = None,
        remote_address: str = "",
    ) -> Request:
        """Return the request for a target; raise ValueError, with the reason, if the target is invalid."""
        path, raw_query = parse_target(target)
        return cls(method, target, path, raw_query, headers, remote_address, body=body or StoredBody())

    def header(self, name: str, default: str = "") -> str:
        """Return the first value of a header; the case of its name does not matter."""
        name = name.lower()
        return next((value for key, value in self.headers if key == name), default)

    @property
    def content_length(self) -> int | None:
        """The length of the body in bytes, as the headers give it; None without such a header."""
        text = self.header("content-length")
        return int(text) if text else None

    async def read(self, limit: int) -> bytes:
        """Read the body, or the rest of it after an earlier call.

        Returns:
            At most ``limit + 1`` bytes. More than ``limit`` bytes mean that the body is too large; nsqd detects it in
            the same way.

        Raises:
            HTTPError: 400 BAD_REQUEST, the body is malformed or ends too early.
            ConnectionLost: the client has disconnected.
        """
        return await self._body.read(limit)


BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "1": True, "false": False, "0": False}
"""The words for a boolean in a query; each route decides what other words mean."""


class Query:
    """The decoded query of a request; an invalid one raises HTTPError, 400 INVALID_REQUEST."""

    __slots__ = ("_values",)

    def __init__(self, request: Request) -> None:
        self._values = {key: values[0] for key, values in parse_query(request.raw_query).items()}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> str:
        """Return a value; empty if it is missing."""
        return self._values.get(key, "")

    def name(self, key: str) -> bytes:
        """Return a value as bytes, the type of names below HTTP; empty if it is missing."""
        return self.get(key).encode("utf-8", "surrogateescape")

    def required(self, key: str) -> bytes:
        """Return a value as bytes; raise HTTPError, 400 ``MISSING_ARG_KEY``, if the key is missing."""
        if key not in self._values:
            raise HTTPError(400, f"MISSING_ARG_{key.upper()}")
        return self.name(key)


@attrs.frozen
class Response:
    """An answer.

    Attributes:
        status: the status code.
        headers: names and values.
        body: the body, or its beginning.
        pieces: the rest of a long body; each piece is produced after the one before was sent.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    pieces: Iterable[bytes] = ()

    @classmethod
    def plain(cls, text: str, *, status: int = 200) -> Response:
        """Return an answer in plain text, as ``/ping`` has it."""
        return cls(status, (_TEXT_TYPE,), _encode(text))

    @classmethod
    def v1(cls, value: object = None, *headers: tuple[str, str]) -> Response:
        """Return a successful answer in the form of most routes.

        Args:
            value: text and bytes are sent as they are, None as an empty body, anything else as JSON.
            headers: further headers of an answer in JSON.
        """
        if value is not None and not isinstance(value, str | bytes):
            return cls(200, (_JSON_TYPE, _NSQ_TYPE, *headers), encode_json(value))
        body = _encode(value) if isinstance(value, str) else value or b""
        return cls(200, (_TEXT_TYPE, _NSQ_TYPE) if body else (_NSQ_TYPE,), body)

    @classmethod
    def v1_pieces(cls, items: Iterable[tuple[str, object]]) -> Response:
        """Return a successful answer with a long JSON object, from its keys and values; it is sent in pieces."""
        return cls(200, (_JSON_TYPE, _NSQ_TYPE), pieces=_encode_pieces(items))

    @classmethod
    def v1_error(cls, status: int, message: str, *headers: tuple[str, str]) -> Response:
        """Return a refusal in the form of most routes: ``{"message":"NOT_FOUND"}``."""
        return cls(status, (_JSON_TYPE, _NSQ_TYPE, *headers), encode_json({"message": message}))

    @classmethod
    def moved(cls, location: str, method: str) -> Response:
        """Return a redirect; as in Go (net/http, Redirect), that of a GET has a link in its body."""
        if method != "GET":
            return cls(307, (("Location", location),))
        link = location.translate(_GO_HTML)
        body = f'<a href="{link}">{REASONS[301]}</a>.\n\n'
        return cls(301, (_HTML_TYPE, ("Location", location)), _encode(body))


Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request; a plain or an async function."""


def check_head(head: bytes, http_version: bytes, headers: Iterable[tuple[str, str]]) -> None:
    """Check the head of a request for errors that h11 accepts and Go's server refuses.

    An attacker can exploit two servers that read a length or a host differently. More data may follow the head.

    Raises:
        ValueError: the head is refused; the text says why.
    """
    for name, value in headers:
        if name == "host" and not _HOST.fullmatch(value):
            raise ValueError("malformed Host header")
        if name == "transfer-encoding" and http_version < b"1.1":
            raise ValueError("Transfer-Encoding in HTTP/1.0")
        if name == "content-length" and _LENGTH_LIST.search(_BLANK_LINE.split(head, 1)[0]):
            raise ValueError("bad Content-Length")  # h11 merges several equal lengths
        if _CONTROL.search(value):
            raise ValueError("invalid header value")


def parse_target(target: str) -> tuple[str, str]:
    """Split the target of a request into the decoded path and the encoded query; raise ValueError if it is invalid."""
    location, _, raw_query = target.partition("?")
    if location[:1] != "/" and "://" in location:
        # Clients send the whole URL to a proxy, and every server must accept it.
        location = "/" + location.partition("://")[2].partition("/")[2]
    if location[:1] != "/" and location != "*":
        raise ValueError(f"target {target!r} does not begin with a slash")
    return _unescape(location), raw_query


def parse_query(raw_query: str) -> dict[str, list[str]]:
    """Decode a query: all values of each key, in order; bytes that are not UTF-8 become surrogate escapes.

    Raises:
        HTTPError: 400 INVALID_REQUEST, for a semicolon or a percent sign without two hexadecimal digits.
    """
    query: dict[str, list[str]] = {}
    if ";" in raw_query:
        raise HTTPError(400, "INVALID_REQUEST", f"there is a semicolon in the query {raw_query!r}")
    try:
        for pair in filter(None, raw_query.split("&")):
            key, _, value = pair.replace("+", " ").partition("=")
            query.setdefault(_unescape(key), []).append(_unescape(value))
    except ValueError as error:
        raise HTTPError(400, "INVALID_REQUEST", str(error)) from error
    return query


def parse_integer(text: str) -> int:
    """Return a 64-bit integer, or raise ValueError with the reason in the words of Go's strconv.Atoi."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("invalid syntax")
    digits = text.lstrip("+-").lstrip("0") or "0"
    number = int(digits[:20]) * (-1 if text.startswith("-") else 1)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("value out of range")
    return number


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    if bad := _BAD_ESCAPE.search(text):
        raise ValueError(f"{text[bad.start() :][:3]!r} is not a percent sign and two hexadecimal digits")
    raw = text.encode("utf-8", "surrogateescape")
    return _ESCAPES.sub(lambda match: bytes.fromhex(match[1].decode()), raw).decode("utf-8", "surrogateescape")


def encode_json(value: object) -> bytes:
    """Return ``value`` in JSON as Go writes it: no blanks, UTF-8, characters with a meaning in HTML escaped."""
    import json  # here, since most processes do not need it

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _LONE_SURROGATE.sub(r"\\ufffd", text.translate(_JSON_ESCAPES)).encode()


def _encode_pieces(items: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """Yield a JSON object in pieces, which together are what ``encode_json`` returns."""
    items = iter(items)
    before = b"{"
    while part := dict(islice(items, PIECE_ITEMS)):
        yield before + encode_json(part)[1:-1]
        before = b","
    yield b"{}" if before == b"{" else b"}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
