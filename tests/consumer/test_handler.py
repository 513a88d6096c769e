from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator

import pytest

from nsqkit.consumer.handler import call_in_thread, call_plain, check_handler, is_async, name_of
from nsqkit.errors import OptionError
from nsqkit.loop_thread import CarriedExit


def plain(message: object) -> None: ...


async def async_function(message: object) -> None: ...


def generator(message: object) -> Iterator[object]:
    yield message


async def async_generator(message: object) -> AsyncIterator[object]:
    yield message


class Plain:
    def __call__(self, message: object) -> None: ...


class Async:
    async def __call__(self, message: object) -> None: ...


class Generator:
    def __call__(self, message: object) -> Iterator[object]:
        yield message


@pytest.mark.parametrize("can_await", [True, False])
@pytest.mark.parametrize("handler", [plain, Plain(), print, functools.partial(plain), lambda message: None])
def test_plain_functions_are_accepted(handler, can_await):
    check_handler(handler, can_await=can_await)
    assert not is_async(handler)


@pytest.mark.parametrize("handler", [async_function, Async(), functools.partial(async_function)])
def test_async_functions_are_accepted_where_awaited(handler):
    check_handler(handler, can_await=True)
    with pytest.raises(OptionError, match="is async; allowed is a plain function in a thread or a BlockingConsumer"):
        check_handler(handler, can_await=False)


@pytest.mark.parametrize("can_await", [True, False])
@pytest.mark.parametrize("handler", [generator, async_generator, Generator()])
def test_generator_functions_are_refused(handler, can_await):
    with pytest.raises(OptionError, match="a generator function; allowed is one without yield"):
        check_handler(handler, can_await=can_await)


@pytest.mark.parametrize("handler", [None, "handler", 3])
def test_handler_that_is_not_callable_is_refused(handler):
    with pytest.raises(OptionError) as caught:
        check_handler(handler, can_await=True)
    assert str(caught.value) == f"handler is {handler!r}; allowed is a function of a message"


@pytest.mark.parametrize("handler", [async_function, Async(), generator, async_generator, Generator()])
def test_awaitable_result_is_an_error_of_the_call(handler):
    with pytest.raises(OptionError, match="handler returned "):
        call_plain(lambda message: handler(message), "message")  # noqa: PLW0108


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_exits_in_threads_are_carried(kind):
    def leave(message: object) -> None:
        raise kind(3)

    with pytest.raises(CarriedExit) as caught:
        call_in_thread(leave, "message")
    assert isinstance(caught.value.error, kind)


@pytest.mark.parametrize("result", [None, 0, "done", [1], range(3), iter([])])
def test_other_results_are_dropped(result):
    call_plain(lambda message: result, "message")


def test_a_handler_has_a_name():
    assert name_of(plain).endswith("test_handler.plain")
    assert name_of(Async()).endswith("test_handler.Async")
