"""The statistics of a consumer, as values for users.

They are frozen copies, in the units of the public API. The consumer does not read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from nsqkit.consumer.backoff import BackoffState
    from nsqkit.wire.auth import AuthAnswer


@attrs.frozen(kw_only=True)
class BackoffStats:
    """The state of the consumer's backoff.

    Attributes:
        state: running, waiting or probing.
        counter: how many more test messages must succeed than fail before deliveries resume; 0 while running.
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
    """One nsqd of a consumer. The counts restart with each connection to it.

    Attributes:
        address: of the nsqd.
        connected: whether it is subscribed.
        error: the last error, if it is not connected.
        version: of the nsqd; empty before it has answered IDENTIFY.
        rdy_count: the RDY last sent.
        in_flight: messages received and not answered.
        received: messages received.
        finished: messages finished.
        requeued: messages requeued.
        touched: TOUCH commands sent.
        timed_out: messages that were not answered in time.
        refused: answers that nsqd refused, mostly because the message had timed out.
        auth: the answer to AUTH; None if the nsqd requires none.
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
    """A consumer as a whole. Messages are counted from the start, over all connections, including lost ones.

    Attributes:
        received: messages received.
        finished: messages finished.
        requeued: messages requeued, including those that no handler has begun.
        touched: TOUCH commands sent.
        timed_out: messages that were not answered in time, which nsqd delivers again, to any consumer.
        given_up: messages that were delivered more than ``max_attempts`` times; finished as well.
        refused: answers that nsqd refused (E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED).
        in_flight: messages received and not answered.
        waiting: those of them that no handler has begun.
        max_in_flight: the limit now in force.
        paused: whether ``pause`` is in force.
        starved: as ``Consumer.is_starved``.
        backoff: as ``Consumer.backoff``.
        connections: every nsqd that is connected or wanted.
        left_out: nsqds that are listed and not connected, because of ``max_connections``.
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
