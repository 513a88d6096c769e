"""The HTTP side of a test server: answers requests by a handler, with the faults of the test.

The handler is that of an embedded server, or ``forward`` to a real one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from nsqkit.clock import NS_PER_S
from nsqkit.errors import ConnectionLost
from nsqkit.http.messages import HTTPError, Query, Response
from nsqkit.testing.http_faults import Answer, Delay, Reset, Silence
from nsqkit.testing.lookup_faults import Edit
from nsqkit.transport.tcp import reset_on_close

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.http.messages import Handler, Request
    from nsqkit.testing.http_faults import Action, HTTPFaults

BODY_MAX = 1 << 20
"""Bytes of a request's body that are read."""


class HTTPFront:
    """Answers the requests of one server.

    Args:
        handle: answers a request without a fault.
        faults: the rules.
        clock: the time of ``slow``.
    """

    def __init__(self, handle: Handler, faults: HTTPFaults, clock: Clock) -> None:
        self._handle = handle
        self._faults = faults
        self._clock = clock

    async def serve(self, stream: ByteStream, remote_address: str) -> None:
        """Answer the requests of one connection until it ends, then close the stream."""
        # h11 is imported for the first connection, so that the start does not take longer for it.
        from nsqkit.http.server import serve_connection

        if self._faults.closes_on_accept():
            await anyio.aclose_forcefully(stream)
            return
        answer = partial(self._answer, stream)
        await serve_connection(stream, answer, clock=self._clock, body_max=BODY_MAX, remote_address=remote_address)

    async def _answer(self, stream: ByteStream, request: Request) -> Response:
        actions = self._faults.plan(request.path, _topic(request))
        for action in actions:
            if isinstance(action, Delay):
                await self._clock.wait_until(self._clock.now_ns() + round(action.seconds * NS_PER_S))
            elif isinstance(action, Silence):
                await anyio.sleep_forever()
            elif isinstance(action, Reset):
                reset_on_close(stream)
                raise ConnectionLost("a fault closes the connection")
            elif isinstance(action, Answer) and action.status is not None:
                return _refusal(action.status, action.body)
        return self._changed(request.path, await self._own(request), actions)

    async def _own(self, request: Request) -> Response:
        """Return the answer of the server."""
        try:
            answer = self._handle(request)
            return answer if isinstance(answer, Response) else await answer
        except HTTPError as error:
            return Response.v1_error(error.status, error.message)

    def _changed(self, path: str, response: Response, actions: list[Action]) -> Response:
        for action in actions:
            if isinstance(action, Edit):
                status, document = action.apply(path, response.status, json.loads(response.body))
                response = Response.v1(document) if status == 200 else Response.v1_error(status, document["message"])
            elif isinstance(action, Answer):
                assert action.body is not None
                response = Response(response.status, response.headers, action.body)
        return response


def _topic(request: Request) -> str:
    with suppress(HTTPError):  # the handler refuses the query
        return Query(request).get("topic")
    return ""


def _refusal(status: int, body: bytes | None) -> Response:
    if body is None:
        return Response.v1_error(status, "INTERNAL_ERROR" if status >= 500 else "INVALID_REQUEST")
    return Response(status, (("Content-Type", "application/json; charset=utf-8"),), body)
