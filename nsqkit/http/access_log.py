"""One line in the log for each request, in the form of nsqd and nsqlookupd.

    200 GET /topics (127.0.0.1:53124) 41.003µs

Refused and redirected requests are logged too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.http.messages import HTTPError, Response
from nsqkit.options.durations import format_duration

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection

    from nsqkit.clock import Clock
    from nsqkit.http.messages import Handler, Request


def logged(handle: Handler, *, logger: logging.Logger, clock: Clock, unlogged: Collection[str] = ()) -> Handler:
    """Return a handler that answers as ``handle`` does, and logs each request whose path is not in ``unlogged``."""

    async def answer(request: Request) -> Response:
        start_ns = clock.now_ns()
        try:
            found = handle(request)
            response = found if isinstance(found, Response) else await found
        except HTTPError as error:
            response = Response.v1_error(error.status, error.message)
        if request.path not in unlogged:
            logger.info(
                "%d %s %s (%s) %s",
                *(response.status, request.method, request.target, request.remote_address),
                format_duration(clock.now_ns() - start_ns),
            )
        return response

    return answer
