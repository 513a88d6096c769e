"""One line in the log for each request, as nsqd and nsqlookupd write it.

    200 GET /topics (127.0.0.1:53124) 41.003µs

The rule it guards: what is logged is what was answered, refusals and redirects too.

How to read it: ``logged`` is a handler around a handler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from nsqkit.http.messages import HTTPError, Response
from nsqkit.options.durations import format_duration

if TYPE_CHECKING:
    from nsqkit.http.messages import Handler, Request

__all__ = ["logged"]


def logged(
    handle: Handler,
    *,
    logger: logging.Logger,
    now_ns: Callable[[], int],
    remote_address: str,
    unlogged: Collection[str] = (),
) -> Handler:
    """Return a handler that answers as ``handle`` does, and logs it.

    Args:
        handle: what answers.
        logger: where the lines go.
        now_ns: tells the time.
        remote_address: ``host:port`` of the client.
        unlogged: paths that are asked too often for a line each.
    """

    async def answer(request: Request) -> Response:
        start_ns = now_ns()
        try:
            found = handle(request)
            response = found if isinstance(found, Response) else await found
        except HTTPError as error:
            response = Response.v1_error(error.status, error.message)
        if request.path not in unlogged:
            took = format_duration(now_ns() - start_ns)
            logger.info(
                "%d %s %s (%s) %s", response.status, request.method, request.target, remote_address, took
            )
        return response

    return answer
