"""One HTTP connection: requests come in, a handler answers each, in order, until either side has had enough.

The rule it guards: never more of a client's bytes are kept than one read, plus what a handler asked for. A body is
read when a handler reads it; what it leaves is thrown away up to a limit, and beyond that the connection is closed.
And no connection keeps the others waiting: all others have a turn after each answer, each piece of a long one, and each
``TURN_EVENTS`` events of h11's.

How to read it: ``serve_connection`` → ``_Connection.serve`` → one pass of its loop per request. h11 knows HTTP and
keeps its state; importing it takes a while, so a server imports this module when the first connection is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import anyio
import h11
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.errors import ConnectionLost
from nsqkit.http.messages import REASONS, Handler, HTTPError, Request, Response, check_head

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["serve_connection"]

logger = logging.getLogger("nsqkit.http")

RECEIVE_SIZE: Final = 65536
"""The most bytes that are taken from the stream at once."""

CHUNK_SIZE: Final = 2048
"""Bytes from which an answer that is made in pieces is sent so, and without its length; as in Go's server."""

SEND_SIZE: Final = 256 * 1024
"""The most bytes of an answer that are sent at once."""

TURN_EVENTS: Final = 50
"""Events of h11's after which all others have a turn; each chunk of a body is one, and costs more than 10 µs."""

LINGER: Final = 0.5
"""Seconds for which a connection that we end is still read from, thrown away, so that the last answer is not lost
to a reset; as long as in Go's server."""

REASON_LENGTH_MAX: Final = 200
"""Characters of a refusal's reason, which may quote what the client sent."""

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


async def serve_connection(stream: ByteStream, handle: Handler, *, body_max: int) -> None:
    """Answer requests on one connection until it ends; the stream is closed then.

    An ``HTTPError`` of the handler becomes the answer that it names. Any other error of it is logged and answered by
    500 INTERNAL_ERROR, as nsqd answers a panic. No error gets out: it would be the end of all other connections.

    Args:
        stream: the client.
        handle: what answers a request, for example ``Router.handle``.
        body_max: the most bytes of one body that are read, whether a handler reads them or they are thrown away to
            get to the next request. A longer body ends the connection after the answer.
    """
    try:
        await _Connection(stream, body_max).serve(handle)
    except _ClientGone:
        pass
    except Exception:
        logger.exception("panic in HTTP connection")
    finally:
        await anyio.aclose_forcefully(stream)


class _ClientGone(ConnectionLost):
    """The stream has broken; there is nobody to answer."""


class _Connection:
    """A stream, and h11's idea of what has been said on it."""

    def __init__(self, stream: ByteStream, body_max: int) -> None:
        self._stream = stream
        self._body_max = body_max
        self._http = h11.Connection(h11.SERVER)
        self._head = b""  # what had come when the last request was found
        self._event_count = 0

    async def serve(self, handle: Handler) -> None:
        while True:
            body = _StreamBody(self, self._body_max)
            is_head = False
            try:
                event = await self.next_event()
                if not isinstance(event, h11.Request):
                    return
                is_head = event.method == b"HEAD"
                request = _request_of(event, self._head, body)
            except (h11.RemoteProtocolError, ValueError) as error:
                await self._send(_refusal(error), close=True, without_body=is_head)
                break
            response = await _answer(handle, request)
            await self._send(response, close=self._ends_after(request), without_body=is_head)
            await anyio.lowlevel.checkpoint()
            if not await self._reaches_next_request(body):
                break
        await self._linger()

    def _ends_after(self, request: Request) -> bool:
        # A client that waits for leave to send its body will not get it any more; a body that is malformed or not
        # read to its end leaves no way to tell where the next request begins.
        state = self._http.their_state
        too_long = state is h11.SEND_BODY and (request.content_length or 0) > self._body_max
        return too_long or state is h11.ERROR or self._http.they_are_waiting_for_100_continue

    async def _reaches_next_request(self, body: _StreamBody) -> bool:
        """Throw away what is left of the body; tell whether the connection goes on."""
        if self._http.our_state is not h11.DONE:
            return False
        try:
            if not await body.skip():
                return False
        except HTTPError:
            return False
        self._http.start_next_cycle()
        return True

    async def next_event(self) -> object:
        """Return h11's next event from the client.

        Raises:
            RemoteProtocolError: what came is not HTTP.
            ConnectionLost: the stream has broken.
        """
        while (event := self._next_event()) is h11.NEED_DATA:
            try:
                self._http.receive_data(await self._stream.receive(RECEIVE_SIZE))
            except EndOfStream:
                self._http.receive_data(b"")
            except (BrokenResourceError, ClosedResourceError) as error:
                raise _ClientGone("the client has closed the connection") from error
        self._event_count += 1
        if self._event_count % TURN_EVENTS == 0:
            await anyio.lowlevel.checkpoint()
        return event

    def _next_event(self) -> object:
        if self._http.their_state is h11.IDLE:
            self._head = self._http.trailing_data[0]
        return self._http.next_event()

    async def invite_body(self) -> None:
        """Tell a client that waits for it (``Expect: 100-continue``) to send the body."""
        if self._http.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))

    async def _send(self, response: Response, *, close: bool, without_body: bool = False) -> None:
        body, pieces = response.body, iter(response.pieces)
        while len(body) < CHUNK_SIZE and (piece := next(pieces, b"")):
            body += piece
        is_whole = len(body) < CHUNK_SIZE or not response.pieces
        headers = [*response.headers, ("Date", _http_date())]
        if is_whole:
            headers.append(("Content-Length", str(len(body))))
        if close:
            headers.append(("Connection", "close"))
        reason = REASONS.get(response.status, "")
        # Without a length, h11 sends chunks, or ends the connection to a client of HTTP/1.0.
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        if without_body:
            await self._write(head, h11.EndOfMessage())
        elif is_whole and len(body) <= SEND_SIZE:
            await self._write(head, h11.Data(data=body), h11.EndOfMessage())
        else:
            await self._write(head)
            for piece in chain(_cut(body), pieces):
                await self._write(h11.Data(data=piece))
                await anyio.lowlevel.checkpoint()
            await self._write(h11.EndOfMessage())

    async def _write(self, *events: h11.Event) -> None:
        data = b"".join([self._http.send(event) or b"" for event in events])
        try:
            await self._stream.send(data)
        except (BrokenResourceError, ClosedResourceError) as error:
            raise _ClientGone("the client has closed the connection") from error

    async def _linger(self) -> None:
        try:
            await self._stream.send_eof()
            with anyio.move_on_after(LINGER):
                while True:
                    await self._stream.receive(RECEIVE_SIZE)
        except (EndOfStream, BrokenResourceError, ClosedResourceError, OSError, NotImplementedError):
            # An OSError comes from ``send_eof`` where the client has gone; and TLS has no half-closed connections.
            return


class _StreamBody:
    """A request's body, taken from the connection piece by piece as it is asked for."""

    def __init__(self, connection: _Connection, body_max: int) -> None:
        self._connection = connection
        self._left = body_max + 1
        self._rest = b""
        self._ended = False

    async def read(self, limit: int) -> bytes:
        await self._connection.invite_body()
        wanted = limit + 1
        pieces = []
        while wanted > 0 and (piece := await self._next(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    async def skip(self) -> bool:
        """Throw the rest away; tell whether the end of the body was reached."""
        while await self._next(RECEIVE_SIZE):
            pass
        return self._ended

    async def _next(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the body and after its first ``body_max + 1`` bytes."""
        if not self._rest and not self._ended and self._left > 0:
            try:
                event = await self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise HTTPError(400, "BAD_REQUEST", str(error)) from error
            if isinstance(event, h11.Data):
                self._rest = bytes(event.data[: self._left])
                self._left -= len(self._rest)
            else:
                self._ended = True
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def _cut(body: bytes) -> Iterator[bytes]:
    return (body[start : start + SEND_SIZE] for start in range(0, len(body), SEND_SIZE))


def _request_of(event: h11.Request, head: bytes, body: _StreamBody) -> Request:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
    check_head(head, event.http_version, headers)
    return Request.of(event.method.decode(), event.target.decode(), headers=headers, body=body)


async def _answer(handle: Handler, request: Request) -> Response:
    try:
        answer = handle(request)
        return answer if isinstance(answer, Response) else await answer
    except _ClientGone:
        raise
    except HTTPError as error:
        return Response.v1_error(error.status, error.message)
    except Exception:
        logger.exception("panic in HTTP handler - %s %s", request.method, request.target)
        return Response.v1_error(500, "INTERNAL_ERROR")


def _refusal(error: Exception) -> Response:
    """Return the answer to what is no request, in the words of Go's server."""
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
    reason = str(error).partition(": bytearray(")[0][:REASON_LENGTH_MAX]  # h11 shows its buffer
    return Response.plain(f"{status} {REASONS[status]}: {reason}", status=status)


def _http_date() -> str:
    now = time.gmtime()
    return (
        f"{_DAYS[now.tm_wday]}, {now.tm_mday:02d} {_MONTHS[now.tm_mon - 1]} {now.tm_year} "
        f"{now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d} GMT"
    )
