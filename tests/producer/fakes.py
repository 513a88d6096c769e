"""What stands in for tasks and nsqds in the tests of the producer's pure parts.

The rule it guards: a fake behaves as the real one does, and is told once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from nsqkit.errors import NSQError
from nsqkit.producer.linger import Linger
from nsqkit.producer.send_window import SendWindow
from nsqkit.producer.session import ProducerSession
from nsqkit.wire.frames import encode_response
from nsqkit.wire.identify import IdentifyRequest

UNANSWERED = object()


class FakeWaiter:
    """Keeps the answer to one publish, which has to come once."""

    def __init__(self) -> None:
        self.answer: Any = UNANSWERED
        self.is_cancelled = False

    def done(self) -> bool:
        return self.is_cancelled or self.answer is not UNANSWERED

    def cancelled(self) -> bool:
        return self.is_cancelled

    def cancel(self) -> None:
        self.is_cancelled = not self.done() or self.is_cancelled

    def set_result(self, result: NSQError | None, /) -> None:
        assert not self.done()
        self.answer = result

    def __await__(self) -> Generator[Any, None, NSQError | None]:
        raise AssertionError("nobody awaits a fake")


@attrs.define(eq=False)
class FakeNsqd:
    """An nsqd, as a policy sees it."""

    address: str
    is_ready: bool = True
    outstanding_count: int = 0


def greeted(linger: Linger | None = None, outstanding: SendWindow | None = None) -> ProducerSession:
    """Return a session whose greeting is over and was sent."""
    session = ProducerSession(
        IdentifyRequest(),
        read_timeout_ns=60,
        max_msg_size=1000,
        now_ns=0,
        linger=linger,
        outstanding=outstanding,
    )
    session.data_to_send(0)
    session.receive_data(encode_response(b"{}"), 0)
    return session


def waiters(count: int) -> list[FakeWaiter]:
    return [FakeWaiter() for _ in range(count)]


def answers(told: list[FakeWaiter]) -> list[Any]:
    return [waiter.answer for waiter in told]
