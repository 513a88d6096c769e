"""What a consumer tells of itself: values that are true for the moment they were asked for.

The rule it guards: whoever looks on changes nothing. These are copies, frozen, in the units of the public API; nothing
in the consumer reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from nsqkit.consumer.backoff import BackoffState
    from nsqkit.wire.auth import AuthAnswer


@attrs.frozen(kw_only=True)
class BackoffStats:
    """Where the consumer's backoff is.

    Attributes:
        state: running, waiting or probing.
        counter: how many more test messages must succeed than fail before everything flows again; 0 while running.
        wait: seconds of the present wait or, while probing, of the last one; 0 while running.
        seconds_left: seconds until the wait is over; 0 unless waiting.
    """

    state: BackoffState
    counter: int
    wait: float
    seconds_left: float


@attrs.define(kw_only=True)
class MessageCounts:
    """How many messages were received, finished and so on; see ``ConsumerStats``."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    timed_out: int = 0
    refused: int = 0

    def add(self, other: MessageCounts) -> None:
        """Add the counts of another object to these."""
        for name, count in attrs.asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


@attrs.frozen(kw_only=True)
class ConnectionStats:
    """One nsqd of a consumer. What is counted begins anew with each connection to it.

    Attributes:
        address: of the nsqd.
        connected: whether the subscription stands.
        error: the last error, of a connection that does not stand.
        version: of the nsqd; empty before it has answered.
        rdy_count: the RDY last sent.
        in_flight: messages received and not answered.
        received: messages received.
        finished: messages finished.
        requeued: messages requeued.
        touched: times that more time was asked for.
        timed_out: messages that were not answered in time.
        refused: answers that nsqd refused, mostly because the message had timed out.
        auth: what it has answered to AUTH; None if it has asked for none.
    """

    address: str
    connected: bool
    error: Exception | None
    version: str
    rdy_count: int
    in_flight: int
    received: int
    finished: int
    requeued: int
    touched: int
    timed_out: int
    refused: int
    auth: AuthAnswer | None = None


@attrs.frozen(kw_only=True)
class ConsumerStats:
    """A consumer as a whole. Messages are counted from the beginning, over all connections, those lost included.

    Attributes:
        received: messages received.
        finished: messages finished.
        requeued: messages requeued, those given back unread among them.
        touched: times that more time was asked for.
        timed_out: messages that were not answered in time; nsqd has delivered them again, here or elsewhere.
        given_up: messages that were delivered more than ``max_attempts`` times; finished as well.
        refused: answers that nsqd refused (E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED).
        in_flight: messages received and not answered.
        waiting: those of them that nobody has begun with.
        max_in_flight: the limit now in force.
        paused: whether ``pause`` holds everything back.
        starved: as ``Consumer.is_starved``.
        backoff: as ``Consumer.backoff``.
        connections: every nsqd that the consumer has, or wants, a connection to.
        left_out: nsqds that nsqlookupds list and that are not connected, because ``max_connections`` are.
    """

    received: int
    finished: int
    requeued: int
    touched: int
    timed_out: int
    given_up: int
    refused: int
    in_flight: int
    waiting: int
    max_in_flight: int
    paused: bool
    starved: bool
    backoff: BackoffStats
    connections: tuple[ConnectionStats, ...]
    left_out: int = 0
