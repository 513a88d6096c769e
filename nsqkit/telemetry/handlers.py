"""A handler whose calls run in a context manager.

A plain handler stays plain, an async one is awaited in the same task, and results and exceptions are passed on
unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from inspect import isawaitable
from typing import Any, TypeVar, cast

from nsqkit.consumer.handler import check_handler, is_async

Work = TypeVar("Work")
R = TypeVar("R")


def surrounded(
    handler: Callable[[Work], R], make_context: Callable[[Work], AbstractContextManager[object]]
) -> Callable[[Work], R]:
    """Return a handler that calls this one, async or plain, within a context that is made from its argument.

    Raises:
        OptionError: it cannot be called, or is a generator function.
    """
    check_handler(handler, can_await=True)
    if is_async(handler):
        # An async function again, so that a consumer in threads refuses it before it takes a message.
        @wraps(handler)
        async def within_async(work: Work) -> Any:
            with make_context(work):
                return await cast("Callable[[Work], Awaitable[object]]", handler)(work)

        return cast("Callable[[Work], R]", within_async)

    @wraps(handler)
    def within(work: Work) -> Any:
        with ExitStack() as stack:
            stack.enter_context(make_context(work))
            result = handler(work)
            # The caller awaits the result at once, in the same task, so the context remains current until then.
            return _finish(stack.pop_all(), result) if isawaitable(result) else result

    return within


async def _finish(stack: ExitStack, result: Awaitable[object]) -> None:
    with stack:
        await result
