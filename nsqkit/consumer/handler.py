"""Checks of handlers and of the values that they return.

A handler in the event loop may be async or plain. In a worker thread, and in ``BlockingConsumer``, nothing awaits or
iterates the result of a handler: an async function or a generator function would return without having run, and its
message would be finished. So these are refused when they are given. If only the result shows it, as with a lambda
around an async function, the call counts as failed.
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
from nsqkit.loop_thread import CarriedExit


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a call returns a coroutine: an async function, or an object with an async ``__call__``."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def check_handler(handler: object, *, can_await: bool, name: str = "handler") -> None:
    """Check a function of a message; ``name`` is its name in errors.

    Raises:
        OptionError: it cannot be called, is a generator function, or is async where nothing is awaited.
    """
    if not callable(handler):
        raise OptionError(f"{name} is {handler!r}; allowed is a function of a message")
    call = getattr(handler, "__call__", None)  # noqa: B004
    if any(test(function) for test in (isgeneratorfunction, isasyncgenfunction) for function in (handler, call)):
        raise OptionError(f"{name} is {handler!r}, a generator function; allowed is one without yield")
    if not can_await and is_async(handler):
        raise OptionError(
            f"{name} is {handler!r}, which is async; allowed is a plain function in a thread or a BlockingConsumer"
        )


def check_result(result: object, *, can_await: bool = False, name: str = "handler") -> None:
    """Raise OptionError if a result is a generator or an awaitable, whose code nothing would run."""
    if isgenerator(result) or isasyncgen(result):
        raise OptionError(f"{name} returned a generator, which nothing iterates; allowed is a function without yield")
    if not can_await and isawaitable(result):
        if iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise OptionError(
            f"{name} returned {type(result).__name__!r}, which cannot be awaited here; "
            "allowed is a plain function in a thread or a BlockingConsumer"
        )


def call_plain(handler: Callable[[Any], object], argument: Any) -> None:
    """Call a handler where nothing is awaited, and check its result."""
    result = handler(argument)
    if result is not None:
        check_result(result)


def call_in_thread(handler: Callable[[Any], object], argument: Any) -> None:
    """Do as ``call_plain`` in a worker thread; an exit of the handler does not end the event loop that waits for it."""
    try:
        call_plain(handler, argument)
    except (SystemExit, KeyboardInterrupt) as error:
        raise CarriedExit(error) from None


def name_of(handler: object) -> str:
    """Return the name of a handler for log lines: ``package.module.function``."""
    qualified = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', None) or type(handler).__module__}.{qualified}"
