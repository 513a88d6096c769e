"""A Hypothesis state machine for handlers: a consumer with the user's handler, and a broker in which much goes wrong.

A subclass has the handler::

    class Billing(HandlerMachine):
        def handle(self, message):
            ...

    TestBilling = Billing.TestCase

Hypothesis publishes messages, lets time pass, loses commands, cuts connections and restarts the broker, in any order.
At the end all faults are over, and each message must have been handled or given up. Hypothesis is not installed with
nsqkit.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nsqkit.consumer import BlockingConsumer
from nsqkit.testing.servers import NsqdServer
from nsqkit.testing.strategies import bodies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqkit.consumer import BlockingMessage, Message

TOPIC, CHANNEL = "topic", "channel"

ROUNDS_MAX = 40
"""Minutes of the clock in which everything must be handled after the last fault."""


class HandlerMachine(RuleBasedStateMachine):
    """A handler under test; a subclass defines ``handle``.

    Class attributes that a subclass may set:
        consumer_options: of the ``BlockingConsumer``.
        nsqd_options: of the ``NsqdServer``.

    Attributes:
        nsqd: the broker; its clock stands still between two steps.
        published: the bodies so far; each begins with a number and a space, so that they differ.
        done: the bodies of the messages for which ``handle`` has returned.
        given_up: the bodies of those that were given up after ``max_attempts``.
    """

    consumer_options: ClassVar[Mapping[str, Any]] = {}
    nsqd_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.published: list[bytes] = []
        self.done: set[bytes] = set()
        self.given_up: set[bytes] = set()
        self.nsqd = NsqdServer(clock="manual", **self.nsqd_options)
        self.nsqd.start()
        self._consumer = BlockingConsumer(
            TOPIC,
            CHANNEL,
            nsqd_tcp_addresses=[self.nsqd.tcp_address],
            clock=self.nsqd.clock,
            **{"max_in_flight": 3, "max_backoff_duration": 0, "default_requeue_delay": 10, **self.consumer_options},
        )
        self._thread = threading.Thread(target=self._consume, name="handler", daemon=True)

    def handle(self, message: BlockingMessage) -> None:
        """Handle one message: the function under test. An exception requeues the message."""
        raise NotImplementedError

    def check(self) -> None:
        """Check the results at the end, when every message has been handled or given up; by default nothing."""

    # ---- the steps -------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Start the consumer."""
        self._consumer.open()
        self._thread.start()

    @rule(bodies=st.lists(bodies(20), min_size=1, max_size=5))
    def publish(self, bodies: list[bytes]) -> None:
        """Publish messages."""
        numbered = [b"%d " % number + body for number, body in enumerate(bodies, len(self.published))]
        self.published += numbered
        self.nsqd.publish(TOPIC, *numbered)

    @rule(seconds=st.sampled_from((0.1, 5, 30, 61, 300)))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.nsqd.clock.advance(seconds)

    @rule(command=st.sampled_from(("FIN", "REQ", "TOUCH", "MESSAGE", "HEARTBEAT")), times=st.integers(1, 3))
    def lose(self, command: str, times: int) -> None:
        """Lose the next commands or frames of one kind."""
        self.nsqd.faults.clear()
        self.nsqd.faults.drop(command=command, times=times)

    @rule()
    def cut(self) -> None:
        """Reset each connection at its next command."""
        self.nsqd.faults.clear()
        self.nsqd.faults.reset(direction="to_broker", times=1)

    @rule(seconds=st.sampled_from((0.0, 1.0)))
    def redeliver(self, seconds: float) -> None:
        """Deliver the next message once more, before its timeout."""
        self.nsqd.faults.clear()
        self.nsqd.faults.redeliver(seconds, times=1)

    @rule()
    def restart(self) -> None:
        """Restart the broker with its messages."""
        self.nsqd.restart(keep_data=True)

    def teardown(self) -> None:
        """End all faults, wait until everything is handled, and check."""
        try:
            if self._thread.ident is not None:  # the handler may have ended its thread
                self.nsqd.faults.clear()
                self.finish()
                self.check()
        finally:
            self._consumer.close()
            self.nsqd.stop()

    # ---- within ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let time pass until every message is handled or given up."""
        for _ in range(ROUNDS_MAX):
            left = {*self.published} - self.done - self.given_up
            if not left and self._is_idle():
                return
            self.nsqd.clock.advance(60)
        raise AssertionError(
            f"{len(left)} messages were neither handled nor given up {ROUNDS_MAX} minutes after the last fault, "
            f"such as {min(left, default=b'')!r}\n{self.nsqd.state}\n{self.nsqd.journal.tail(20)}"
        )

    def _is_idle(self) -> bool:
        if self._consumer.stats().in_flight:  # also of messages that a fault has delivered once more
            return False
        channel = self.nsqd.topic(TOPIC).channel(CHANNEL)
        return not self.published or channel.depth + channel.in_flight + channel.deferred == 0

    def _consume(self) -> None:
        # The failures of a handler are expected here; each would be a traceback in the output.
        logging.getLogger("nsqkit.consumer").addFilter(_is_hidden)
        try:
            self._consumer.run(self._handle, giving_up=self._give_up)
        finally:
            logging.getLogger("nsqkit.consumer").removeFilter(_is_hidden)

    def _handle(self, message: BlockingMessage) -> None:
        self.handle(message)
        self.done.add(message.body)

    def _give_up(self, message: Message) -> None:
        self.given_up.add(message.body)


def _is_hidden(record: logging.LogRecord) -> bool:
    return False
