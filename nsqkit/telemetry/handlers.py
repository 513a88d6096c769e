"""A handler with something around each of its calls.

The rule it guards: a plain handler stays plain, an async one is awaited where it would have been awaited, and what it
raises or returns comes out as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from inspect import isawaitable
from typing import Any, TypeVar

Work = TypeVar("Work")
R = TypeVar("R")


def surrounded(
    handler: Callable[[Work], R], make_context: Callable[[Work], AbstractContextManager[object]]
) -> Callable[[Work], R]:
    """Return a handler that calls this one within a context, and awaits in it what that returns to be awaited.

    Args:
        handler: of a message or of a batch, async or plain.
        make_context: makes the context of one call, from what the handler is called with.
    """

    @wraps(handler)
    def within(work: Work) -> Any:
        with ExitStack() as stack:
            stack.enter_context(make_context(work))
            result = handler(work)
            # What calls handlers awaits at once, in the same task, so the context stays the current one until then.
            return _finish(stack.pop_all(), result) if isawaitable(result) else result

    return within


async def _finish(stack: ExitStack, result: Awaitable[object]) -> None:
    with stack:
        await result
