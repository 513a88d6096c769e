"""The rules for RDY and backoff of a consumer, which hold for any flow control.

RDY is 0 when CLS is sent, and stays so. A consumer at rest has asked for as many messages as it may, if none is in
flight: for none while it is paused or waits, and for one while it probes. A test message that was answered or lost is
replaced. A message that waits for a handler has not timed out, and does not do so soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.backoff import BackoffState
from tests.simulation.broken import conclude

if TYPE_CHECKING:
    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.options import ConsumerOptions
    from nsqkit.wire.commands import Command


WAITING_PART: Final = 4
PAUSE_NS: Final = 100_000_000
"""A message that waits for a handler has a quarter of its timeout left, less the pause between two searches."""


class RdyRule:
    """RDY and CLS of one connection, in the order in which the broker gets them."""

    def __init__(self) -> None:
        self._rdy_count = 0
        self._is_closing = False

    def command(self, command: Command) -> None:
        """Check a command."""
        if command.verb == b"CLS":
            self._is_closing = True
        elif command.verb == b"RDY":
            self._rdy_count = int(command.params[0]) if command.params else 1
        conclude(6, not (self._is_closing and self._rdy_count), f"RDY is {self._rdy_count} at or after CLS")


def check_flow(name: str, core: ConsumerCore, options: ConsumerOptions, now_ns: int) -> None:
    """Check a consumer that has sent all that it has to send."""
    flow, backoff = core.flow, core.backoff
    held_count = sum(len(session.held) for session in core.sessions)
    conclude(13, flow.in_flight == held_count, f"{name} counts {flow.in_flight} messages, and holds {held_count}")
    # Backoff takes any hashable object for a test message; in a consumer it is a Message.
    test: Message | None = backoff.test_message  # type: ignore[assignment]
    if test is not None and (test.is_answered or backoff.state is not BackoffState.PROBING):
        conclude(27, False, f"{name} waits for the result of {test.body!r} though there will be none")
    # Where the wait is as long as it may be, failures do not count.
    step_count = 1
    while options.backoff_multiplier * 2**step_count < options.max_backoff_duration:
        step_count += 1
    conclude(27, backoff.counter <= step_count, f"{name} needs {backoff.counter} successes to end its backoff")
    if backoff.deadline_ns is not None:
        most_ns = round(options.max_backoff_duration * NS_PER_S)
        conclude(27, backoff.deadline_ns - now_ns <= most_ns, f"{name} waits longer than {most_ns} ns")
    leaving = [session for session in core.sessions if session.is_closing]
    for message in core.inbox:
        conclude(18, message.session not in leaving, f"{message.body!r} waits for a handler of {name}, which leaves")
        conclude(5, not message.is_answered, f"{message.body!r} waits for a handler of {name}, and has its answer")
    check_waiting(name, core, now_ns)
    takers = [session for session in core.sessions if session not in leaving]
    most = min(flow.max_in_flight, sum(session.answer.max_rdy_count for session in takers if session.answer))
    if flow.paused or backoff.state is BackoffState.WAITING or test is not None:
        most = 0
    elif backoff.state is BackoffState.PROBING:
        most = min(most, 1)
    found = sum(flow.rdy_count(session) for session in takers)
    conclude(6, found == flow.total_rdy_count, f"{name} has RDY at a connection that it leaves")
    conclude(6, found <= most, f"{name} has an RDY of {found} in sum, and may have {most}")
    conclude(27, found == most or held_count > 0, f"{name} has an RDY of {found} in sum, {most} are allowed")


def check_waiting(name: str, core: ConsumerCore, now_ns: int) -> None:
    """Check that no message that waits for a handler times out soon."""
    for queue in core.queues:
        for message in queue:
            left_ns = message.deadline_ns - now_ns
            is_fresh = left_ns >= message.session.msg_timeout_ns // WAITING_PART - PAUSE_NS or message.is_answered
            conclude(5, is_fresh, f"{message.body!r} waits for a handler of {name}, with {left_ns} ns left")
