"""One HTTP connection: requests come in, and a handler answers them in order.

At most one read of a client's bytes is kept, plus what a handler has read of a body. A body that no handler reads is
discarded up to a limit, and with a longer one the connection is closed. The other tasks get a turn
after each answer, each piece of a long answer and each ``TURN_EVENTS`` events of h11, so that one connection does not
delay the others. h11 implements HTTP; importing it takes a while, so a server imports this module for its first
connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from email.utils import formatdate
from itertools import chain
from typing import TYPE_CHECKING, Final

import anyio
import h11
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.clock import NS_PER_S, Clock, move_on_after
from nsqkit.errors import ConnectionLost
from nsqkit.http.messages import REASONS, Handler, HTTPError, Request, Response, check_head

if TYPE_CHECKING:
    from anyio.abc import ByteStream

logger = logging.getLogger("nsqkit.http")

RECEIVE_SIZE: Final = 65536
"""The most bytes that one read returns."""

CHUNK_SIZE: Final = 2048
"""Bytes from which an answer in pieces is sent as chunks, without its length; as in Go's server."""

SEND_SIZE: Final = 256 * 1024
"""The most bytes of an answer that one write sends."""

TURN_EVENTS: Final = 50
"""Events of h11 after which the other tasks get a turn; each chunk of a body is an event that takes over 10 µs."""

LINGER: Final = 0.5
"""Seconds for which a connection that this end closes is still read, so that a reset does not destroy the last
answer; as in Go's server."""

REASON_LENGTH_MAX: Final = 200
"""Characters of the reason for a refusal, which may quote the request."""


async def serve_connection(
    stream: ByteStream, handle: Handler, *, clock: Clock, body_max: int, remote_address: str = ""
) -> None:
    """Answer requests on one connection until it ends, then close the stream.

    An ``HTTPError`` of the handler becomes the answer that it names; ``ConnectionLost`` closes the connection without
    an answer. Every other exception is logged and answered by 500 INTERNAL_ERROR, as nsqd answers a panic. No exception
    is raised: it would end all other connections.

    Args:
        stream: the connection.
        handle: answers a request, for example ``Router.handle``.
        clock: the time.
        body_max: the most bytes of one body that are read, by a handler or to get to the next request. A longer body
            ends the connection after the answer.
        remote_address: ``host:port`` of the client, passed on in each request.
    """
    try:
        await _Connection(stream, clock, body_max, remote_address).serve(handle)
    except ConnectionLost:
        pass
    except Exception:
        logger.exception("panic in HTTP connection")
    finally:
        await anyio.aclose_forcefully(stream)


class _ClientGone(ConnectionLost):
    """The stream has broken; no answer can be sent."""


class _Connection:
    """A stream with the state of HTTP on it."""

    def __init__(self, stream: ByteStream, clock: Clock, body_max: int, remote_address: str) -> None:
        self._stream = stream
        self._clock = clock
        self._body_max = body_max
        self._remote_address = remote_address
        self._http = h11.Connection(h11.SERVER)
        self._head = b""  # the bytes that were there when the last request was found
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
                request = self._request(event, body)
            except (h11.RemoteProtocolError, ValueError) as error:
                await self._send(_refusal(error), close=True, without_body=is_head)
                break
            response = await _answer(handle, request)
            await self._send(response, close=self._must_close(request), without_body=is_head)
            await anyio.lowlevel.checkpoint()
            if not await self._skip_to_next_request(body):
                break
        await self._linger()

    def _request(self, event: h11.Request, body: _StreamBody) -> Request:
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        check_head(self._head, event.http_version, headers)
        return Request.of(
            event.method.decode(),
            event.target.decode(),
            headers=headers,
            body=body,
            remote_address=self._remote_address,
        )

    def _must_close(self, request: Request) -> bool:
        # A client that waits for permission to send its body does not send it after the answer; after a body that is
        # malformed or not read to its end, the beginning of the next request is unknown.
        state = self._http.their_state
        too_long = state is h11.SEND_BODY and (request.content_length or 0) > self._body_max
        return too_long or state is h11.ERROR or self._http.they_are_waiting_for_100_continue

    async def _skip_to_next_request(self, body: _StreamBody) -> bool:
        """Discard the rest of the body; return False if the connection has to be closed."""
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
        """Return the next event of h11 from the client.

        Raises:
            RemoteProtocolError: the input is not HTTP.
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
        """Send 100 Continue to a client that waits for it before it sends the body."""
        if self._http.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))

    async def _send(self, response: Response, *, close: bool, without_body: bool = False) -> None:
        body, pieces = response.body, iter(response.pieces)
        while len(body) < CHUNK_SIZE and (piece := next(pieces, b"")):
            body += piece
        is_whole = len(body) < CHUNK_SIZE or not response.pieces
        headers = [*response.headers, ("Date", formatdate(self._clock.now_ns() // NS_PER_S, usegmt=True))]
        if is_whole:
            headers.append(("Content-Length", str(len(body))))
        if close:
            headers.append(("Connection", "close"))
        reason = REASONS.get(response.status, "")
        # Without a length, h11 sends chunks, or closes the connection to a client of HTTP/1.0.
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
            with move_on_after(self._clock, LINGER):
                while True:
                    await self._stream.receive(RECEIVE_SIZE)
        except (EndOfStream, BrokenResourceError, ClosedResourceError, OSError, NotImplementedError):
            # ``send_eof`` raises OSError if the client has disconnected; TLS connections cannot be half-closed.
            return


class _StreamBody:
    """The body of a request, read from the connection on demand."""

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
        """Discard the rest; return True if the end of the body was reached."""
        while await self._next(RECEIVE_SIZE):
            pass
        return self._ended

    async def _next(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes; none at the end of the body and after its first ``body_max + 1`` bytes."""
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


async def _answer(handle: Handler, request: Request) -> Response:
    try:
        answer = handle(request)
        return answer if isinstance(answer, Response) else await answer
    except ConnectionLost:
        raise
    except HTTPError as error:
        return Response.v1_error(error.status, error.message)
    except Exception:
        logger.exception("panic in HTTP handler - %s %s", request.method, request.target)
        return Response.v1_error(500, "INTERNAL_ERROR")


def _refusal(error: Exception) -> Response:
    """Return the answer to invalid HTTP, in the words of Go's server."""
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
    reason = str(error).partition(": bytearray(")[0][:REASON_LENGTH_MAX]  # h11 appends its buffer
    return Response.plain(f"{status} {REASONS[status]}: {reason}", status=status)
