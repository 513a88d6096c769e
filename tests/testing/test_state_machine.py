from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from nsqkit.consumer import BlockingMessage
from nsqkit.testing.state_machine import HandlerMachine

FEW = settings(
    max_examples=8, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)


class Correct(HandlerMachine):
    """It fails at the first delivery of each third message."""

    def handle(self, message: BlockingMessage) -> None:
        if message.body[:1] in b"369" and message.attempts == 1:
            raise ValueError


class Failing(HandlerMachine):
    """It always fails: each message is given up."""

    consumer_options: ClassVar = {"max_attempts": 3}

    def handle(self, message: BlockingMessage) -> None:
        raise ValueError

    def check(self) -> None:
        assert self.given_up == {*self.published}


class Twice(HandlerMachine):
    """It cannot handle a message that is delivered again."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        self.has_begun = threading.Semaphore(0)  # once for each message

    def handle(self, message: BlockingMessage) -> None:
        self.seen.append(message.body)
        self.has_begun.release()

    def check(self) -> None:
        assert len(self.seen) == len({*self.seen}), "a message was handled twice"


@pytest.mark.parametrize("machine", [Correct, Failing])
def test_handler_with_every_result_passes(machine: type[HandlerMachine]) -> None:
    run_state_machine_as_test(machine, settings=FEW)


def test_handler_that_is_not_idempotent_is_found() -> None:
    machine = Twice()
    machine.begin()
    machine.redeliver(1.0)
    machine.publish([b"x"])
    assert machine.has_begun.acquire(timeout=60)
    machine.wait(5)
    assert machine.has_begun.acquire(timeout=60)
    with pytest.raises(AssertionError, match="handled twice"):
        machine.teardown()


class Stuck(HandlerMachine):
    """It neither returns nor fails while the test runs."""

    def __init__(self) -> None:
        super().__init__()
        self.may_return = threading.Event()

    def handle(self, message: BlockingMessage) -> None:
        self.may_return.wait()


def test_message_that_is_never_handled_is_named() -> None:
    machine = Stuck()
    machine.begin()
    machine.publish([b"x"])
    with pytest.raises(AssertionError, match=r"1 messages were neither handled nor given up .* such as b'0 x'"):
        machine.finish()
    machine.may_return.set()
    machine.teardown()


class Exiting(HandlerMachine):
    """It ends its thread, and so the consumer's run."""

    def handle(self, message: BlockingMessage) -> None:
        raise SystemExit(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_message_is_named_when_the_handler_has_ended_its_thread() -> None:
    machine = Exiting()
    machine.begin()
    machine.publish([b"x"])
    machine._thread.join(60)
    with pytest.raises(AssertionError, match=r"1 messages were neither handled nor given up"):
        machine.teardown()
