"""The broker as one case uses it: connections, HTTP requests, and topics that no other case or program has.

Everything that a case made is removed after it: its connections are closed and its topics deleted. Without an HTTP
address, a topic is removed with the last of its channels, since all names end in ``#ephemeral``.
"""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from nsqkit.testing.conformance.connection import MAGIC, QUIET_S, Connection
from nsqkit.testing.conformance.received import Mismatch, Skipped, show
from nsqkit.transport.address import split_address

if TYPE_CHECKING:
    from types import TracebackType

CHANNEL: Final = b"conformance#ephemeral"
NO_HTTP: Final = "the HTTP address is not given (--http)"

MSG_TIMEOUT_MS: Final = 60_000
"""The message timeout of cases that hold a message: a busy machine must not take it from them."""

LATENESS_S: Final = 6.0
"""Seconds that a timeout may be late: nsqd looks for new channels every 5 s (--queue-scan-refresh-interval)."""

EARLINESS_S: Final = 0.05
"""Seconds that a timeout may seem to be early, for the difference of two clocks."""

_POLL_S = 0.02
_NAME_LENGTH_MAX = 64
_DIGITS_MAX = 19  # of an integer of 64 bits; Python refuses to convert thousands
_EPHEMERAL = b"#ephemeral"


@attrs.frozen
class Answer:
    """The answer to an HTTP request; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {show(self.body)}"

    def document(self) -> dict[str, Any]:
        """Return the JSON object of the body; raise Mismatch if it is none."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):  # no JSON, or nested too deeply for Python
            document = None
        if not isinstance(document, dict):
            raise Mismatch("a JSON object", str(self))
        return document


class Probe:
    """The broker as one case uses it, for ``with``.

    Args:
        tcp_address: ``host:port`` of the protocol.
        http_address: ``host:port`` of the HTTP routes, empty for none.
        timeout: seconds for each answer.

    Attributes:
        transcript: a line for everything that was sent or received.
        timeout: as the argument.
    """

    def __init__(self, tcp_address: str, http_address: str, *, timeout: float) -> None:
        self.transcript: list[str] = []
        self.timeout = timeout
        self._tcp_address = tcp_address
        self._http_address = http_address
        self._connections: list[Connection] = []
        self._topics: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections:
            connection.close()
        for topic in self._topics:
            try:
                self._remove(topic)
            except (Mismatch, OSError, http.client.HTTPException):
                pass  # the result of the case is what counts; a broker that fails here has failed a case

    def _remove(self, topic: bytes) -> None:
        if self._http_address:
            self.http("POST", f"/topic/delete?topic={_quoted(topic)}")
            return
        with Connection(self._tcp_address, [], name="", timeout=self.timeout) as connection:
            connection.subscribe(topic, CHANNEL)

    # ---- the protocol -----------------------------------------------------------------------------------------

    def connect(self, magic: bytes = MAGIC) -> Connection:
        """Return a new connection, on which the magic has been sent."""
        name = f"connection {len(self._connections) + 1}:"
        connection = Connection(self._tcp_address, self.transcript, name=name, timeout=self.timeout, magic=magic)
        self._connections.append(connection)
        return connection

    def topic(self, length: int | None = None) -> bytes:
        """Return a new name, of 41 bytes or of the given length, which is at most 64; the topic is deleted later."""
        name = b"nsqkit-conformance-%b" % secrets.token_hex(6).encode()
        if length is not None:
            name = name.ljust(length - len(_EPHEMERAL), b"x")
        self._topics.append(name + _EPHEMERAL)
        return self._topics[-1]

    def consumer(self, topic: bytes, *, ready: int | None = 1, channel: bytes = CHANNEL, **fields: Any) -> Connection:
        """Return a connection that has subscribed, after an IDENTIFY if there are ``fields``."""
        connection = self.connect()
        if fields:
            connection.identify(**fields)
        connection.subscribe(topic, channel, ready=ready)
        return connection

    def publish(self, topic: bytes, *bodies: bytes) -> None:
        """Publish each body, on a connection that is closed afterwards."""
        with self.connect() as connection:
            connection.publish(topic, *bodies)

    # ---- HTTP -------------------------------------------------------------------------------------------------

    def http(self, method: str, target: str, body: bytes = b"") -> Answer:
        """Send a request and return the answer.

        Raises:
            Mismatch: the answer is not HTTP, or it is not complete within the limit of an answer.
        """
        if not self._http_address:
            raise Skipped(NO_HTTP)
        self.transcript.append(f"HTTP: sent {method} {target}{f' with the body {show(body)}' if body else ''}")
        host, port = split_address(self._http_address)
        client = http.client.HTTPConnection(host, port, timeout=self.timeout)
        answer, late = None, threading.Event()
        problem = f"no complete answer within {self.timeout:g} s"
        try:
            client.connect()
            with _ended_after(self.timeout, client.sock, late):
                client.request(method, target, body)
                response = client.getresponse()
                headers = {name.lower(): value for name, value in response.getheaders()}
                answer = Answer(response.status, headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            if not (isinstance(error, TimeoutError) or late.is_set()):
                problem = f"{type(error).__name__}: {error}"
        finally:
            client.close()
        if answer is None or late.is_set():
            raise Mismatch("an answer", problem)
        self.transcript.append(f"HTTP: received {answer}")
        return answer

    def expect_http(self, method: str, target: str, status: int, text: bytes = b"", *, body: bytes = b"") -> None:
        """Send a request, and compare the status and the body of the answer."""
        answer = self.http(method, target, body)
        if (answer.status, answer.body) != (status, text):
            raise Mismatch(f"{status} {show(text)}", str(answer))

    def post(self, path: str, topic: bytes, channel: bytes = b"") -> None:
        """Change a topic or a channel, which the broker answers with 200 and an empty body."""
        query = f"topic={_quoted(topic)}" + (f"&channel={_quoted(channel)}" if channel else "")
        self.expect_http("POST", f"{path}?{query}", 200)

    def option(self, name: str, default: int | None = None) -> int:
        """Return a number of the broker's options, from ``/config``.

        Raises:
            Skipped: the broker does not answer, and there is no ``default``.
        """
        if default is not None and not self._http_address:
            return default
        answer = self.http("GET", f"/config/{name}")
        if answer.status == 200 and answer.body.isdigit() and len(answer.body) <= _DIGITS_MAX:
            return int(answer.body)
        if default is None:
            raise Skipped(f"the broker does not answer GET /config/{name}")
        return default

    def topic_stats(self, topic: bytes) -> dict[str, Any] | None:
        """Return a topic in ``/stats``, None if there is no such topic."""
        document = self.http("GET", f"/stats?format=json&topic={_quoted(topic)}").document()
        return next((found for found in document.get("topics") or () if found["topic_name"] == topic.decode()), None)

    def channel_stats(self, topic: bytes, channel: bytes = CHANNEL) -> dict[str, Any] | None:
        """Return a channel in ``/stats``, None if there is no such channel."""
        channels = (self.topic_stats(topic) or {}).get("channels") or ()
        return next((found for found in channels if found["channel_name"] == channel.decode()), None)

    def wait_for_stats(self, expected: dict[str, Any], look: Callable[[], dict[str, Any] | None]) -> None:
        """Wait until ``look`` returns an object with all expected values.

        Raises:
            Mismatch: it does not within the limit of an answer.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            found = look() or {}
            seen = {name: found.get(name) for name in expected}
            if seen == expected:
                return
            if time.monotonic() > deadline:
                raise Mismatch(f"/stats with {expected}", str(seen))
            time.sleep(_POLL_S)

    # ---- time -------------------------------------------------------------------------------------------------

    def elapsed(self) -> Callable[[], float]:
        """Return a function for the seconds since this call."""
        start = time.monotonic()
        return lambda: time.monotonic() - start

    def within(self, delay: float) -> float:
        """Return the seconds in which something must come that is due after ``delay`` seconds."""
        return delay + LATENESS_S + QUIET_S

    def check_not_early(self, elapsed: float, delay: float) -> None:
        """Raise Mismatch if something that is due after ``delay`` seconds came earlier."""
        if elapsed < delay - EARLINESS_S:
            raise Mismatch(f"a delay of {delay} s", f"{elapsed:.3f} s")

    def now_ns(self) -> int:
        """Return the time of this machine, in ns since the Unix epoch."""
        return time.time_ns()


@contextmanager
def _ended_after(seconds: float, stream: socket.socket, late: threading.Event) -> Iterator[None]:
    """End a connection after some seconds, since its own limit is for each read; ``late`` is set then."""

    def end() -> None:
        late.set()
        with suppress(OSError):  # it has ended
            stream.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _quoted(name: bytes) -> str:
    return name.decode().replace("#", "%23")
