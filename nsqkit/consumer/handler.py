"""What a handler may be, and how one is called where nothing can be awaited.

A handler in the event loop may be async or plain. In a worker thread, or in ``BlockingConsumer``, nothing awaits or
iterates what a handler returns. An async function or a generator function would return without having run there, and
its message would be finished. So these are refused when they are given. A result that shows it only afterwards, such as
that of a lambda around an async function, makes the call a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any

from nsqkit.errors import OptionError


def is_async(function: Callable[..., object]) -> bool:
    """Tell whether calling it returns a coroutine: an async function, or an object with an async ``__call__``."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def check_handler(handler: object, *, can_await: bool, name: str = "handler") -> None:
    """Check a function that is to be called with a message.

    Args:
        handler: the function.
        can_await: whether what it returns is awaited.
        name: what users call it.

    Raises:
        OptionError: it cannot be called, it is a generator function, or it is async where nothing is awaited.
    """
    if not callable(handler):
        raise OptionError(f"{name} is {handler!r}; allowed is a function of a message")
    call = getattr(handler, "__call__", None)  # noqa: B004
    if any(
        test(function) for test in (isgeneratorfunction, isasyncgenfunction) for function in (handler, call)
    ):
        raise OptionError(f"{name} is {handler!r}, a generator function; allowed is one without yield")
    if not can_await and is_async(handler):
        raise OptionError(
            f"{name} is {handler!r}, which is async; allowed is a plain function in a thread or a BlockingConsumer"
        )


def check_result(result: object, *, can_await: bool = False, name: str = "handler") -> None:
    """Check what a call of a handler has returned, if it was not None.

    Raises:
        OptionError: it stands for work that has not been done and that nothing will do.
    """
    if isgenerator(result) or isasyncgen(result):
        raise OptionError(
            f"{name} returned a generator, which nothing iterates; allowed is a function without yield"
        )
    if not can_await and isawaitable(result):
        if iscoroutine(result):
            result.close()  # it would warn that it was never awaited
        raise OptionError(
            f"{name} returned {type(result).__name__!r}, which cannot be awaited here; "
            "allowed is a plain function in a thread or a BlockingConsumer"
        )


def call_plain(handler: Callable[[Any], object], argument: Any) -> None:
    """Call a handler where nothing can be awaited.

    Raises:
        OptionError: as ``check_result``.
    """
    result = handler(argument)
    if result is not None:
        check_result(result)


def name_of(handler: object) -> str:
    """Return the name of a handler for log lines: ``package.module.function``."""
    qualified = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', None) or type(handler).__module__}.{qualified}"
