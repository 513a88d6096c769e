"""Distinguishes failures of a handler from the cancellation of its task.

With asyncio, a handler may raise ``CancelledError`` although its task was not cancelled: it has awaited another task or
a future that was. If that ended the worker, ``run`` would return while the consumer receives messages.
"""

from __future__ import annotations

import asyncio

from nsqkit.loop_thread import CarriedExit
from nsqkit.transport.asyncio_stream import asyncio_loop


def failure_of(error: BaseException) -> Exception | None:
    """Return the failure of a handler that has raised an error; None if the error ends its task.

    Call this in the task of the handler, before a cancel scope around it is left.
    """
    if isinstance(error, Exception):
        return None if isinstance(error, CarriedExit) else error
    if not isinstance(error, asyncio.CancelledError) or asyncio_loop() is None:
        return None
    task = asyncio.current_task()
    if task is None or task.cancelling():  # cancel scopes of anyio call ``cancel`` of the task, too
        return None
    failure = RuntimeError("CancelledError was raised, but this task was not cancelled")
    failure.__cause__ = error
    return failure
