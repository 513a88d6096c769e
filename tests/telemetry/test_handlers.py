from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import pytest

from nsqkit.consumer.handler import check_handler
from nsqkit.errors import OptionError
from nsqkit.telemetry.handlers import surrounded

pytestmark = pytest.mark.anyio


class Log(list[str]):
    """A record of the events, in order."""

    @contextmanager
    def around(self, work: str) -> Iterator[None]:
        self.append(f"begin {work}")
        try:
            yield
        except ValueError as error:
            self.append(f"{error}")
            raise
        finally:
            self.append(f"end {work}")


async def test_an_async_handler_is_awaited_within():
    log = Log()

    async def handle(work: str) -> None:
        await anyio.lowlevel.checkpoint()
        log.append(work)

    await surrounded(handle, log.around)("x")
    assert log == ["begin x", "x", "end x"]


def test_plain_handler_returns_its_result():
    log = Log()

    def handle(work: str) -> int:
        """Handle it."""
        return len(work)

    within = surrounded(handle, log.around)
    assert within("x") == 1
    assert log == ["begin x", "end x"]
    assert (within.__name__, within.__doc__) == ("handle", "Handle it.")


@pytest.mark.parametrize("is_async", [False, True])
async def test_exception_of_a_handler_is_passed_on(is_async):
    log = Log()

    def fail(work: str) -> None:
        raise ValueError("wrong")

    async def fail_later(work: str) -> None:
        fail(work)

    with pytest.raises(ValueError, match="wrong"):
        result = surrounded(fail_later if is_async else fail, log.around)("x")
        if result is not None:
            await result
    assert log == ["begin x", "wrong", "end x"]


def test_async_handlers_are_refused_where_nothing_is_awaited():
    async def handle(work: str) -> None: ...

    class Handler:
        async def __call__(self, work: str) -> None: ...

    for handler in (handle, partial(handle), Handler()):
        with pytest.raises(OptionError, match="which is async; allowed is a plain function in a thread"):
            check_handler(surrounded(handler, Log().around), can_await=False)


def test_generator_functions_are_refused():
    def handle(work: str) -> Iterator[str]:
        yield work

    with pytest.raises(OptionError, match="a generator function; allowed is one without yield"):
        surrounded(handle, Log().around)
