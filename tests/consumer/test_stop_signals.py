from __future__ import annotations

import asyncio
import os
import signal

import anyio
import pytest
import trio

from nsqkit.consumer.stop_signals import LoopCaller, StopSignals, check_signals
from nsqkit.errors import OptionError
from tests.integration.test_fork import in_child
from tests.threads import WAIT_LIMIT, start

USED = [signal.SIGUSR1, signal.SIGUSR2]


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = [signal.getsignal(number) for number in USED]
    yield
    assert [signal.getsignal(number) for number in USED] == before


@pytest.mark.parametrize("value", ["SIGTERM", 15, None, ["SIGTERM"], [0], [4711]], ids=repr)
def test_invalid_signals_are_refused(value):
    with pytest.raises(OptionError, match=r"stop_signals is .*; allowed is a list such as"):
        check_signals(value)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_signal_that_cannot_be_handled_is_refused(name):
    value = [signal.SIGTERM, signal.Signals[name]]
    with pytest.raises(OptionError) as caught:
        check_signals(value)
    assert str(caught.value) == (
        f"stop_signals is {value!r}; allowed is a list such as [signal.SIGTERM]: {name} cannot be handled"
    )


def test_numbers_and_signals_are_accepted_and_taken_once():
    assert check_signals([15, signal.SIGINT, signal.SIGTERM]) == (signal.SIGTERM, signal.SIGINT)
    assert check_signals(()) == ()


def test_first_signal_differs_from_later_ones():
    received: list[bool] = []
    with StopSignals(USED, received.append) as signals:
        signal.raise_signal(signal.SIGUSR1)
        signals.is_handled = True
        signal.raise_signal(signal.SIGUSR2)
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGUSR2)
    assert received == [True, False, False]
    assert caught.value.code == 128 + signal.SIGUSR2


def test_a_second_signal_interrupts_a_program_that_has_not_acted_on_the_first():
    received: list[bool] = []
    with StopSignals([signal.SIGINT], received.append):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert received == [True, False]


def test_several_consumers_share_a_signal():
    received: list[str] = []
    with StopSignals(USED[:1], lambda is_first: received.append("one")):
        with StopSignals(USED[:1], lambda is_first: received.append("two")):
            signal.raise_signal(signal.SIGUSR1)
        assert received == ["one", "two"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_has_the_handlers_of_the_program():
    received: list[bool] = []
    before = [signal.getsignal(number) for number in USED]
    with StopSignals(USED, print) as signals:
        handlers = [signal.getsignal(number) for number in USED]

        def work() -> None:
            assert [signal.getsignal(number) for number in USED] == before
            with StopSignals(USED, received.append):
                signals.__exit__()  # has no effect
                signal.raise_signal(signal.SIGUSR1)
            assert received == [True]
            assert [signal.getsignal(number) for number in USED] == before

        in_child(work)
        assert [signal.getsignal(number) for number in USED] == handlers


def test_signals_outside_of_the_main_thread_are_refused():
    entering = start(StopSignals(USED, print).__enter__)
    assert isinstance(entering.exception(WAIT_LIMIT), OptionError)
    assert start(StopSignals([], print).__enter__).exception(WAIT_LIMIT) is None


@pytest.mark.parametrize("run", [asyncio.run, lambda coroutine: trio.run(lambda: coroutine)], ids=["asyncio", "trio"])
def test_a_signal_reaches_the_event_loop(run):
    async def program() -> None:
        came = []
        call_soon = LoopCaller()
        with StopSignals(USED, lambda is_first: call_soon(lambda: came.append(is_first))):
            signal.raise_signal(signal.SIGUSR1)
            with anyio.fail_after(WAIT_LIMIT):
                while not came:
                    await anyio.lowlevel.checkpoint()

    run(program())
