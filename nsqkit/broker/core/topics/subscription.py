"""A consumer of a channel: how many messages it can take, and where they go.

A subscription is created by SUB and belongs to the channel and to the session of the consumer. The session changes its
RDY count; the channel reads ``capacity`` and calls ``deliver``. Neither of them is reachable from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nsqkit.broker.core.topics.in_flight import InFlight
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from random import Random

    from nsqkit.broker.core.disk.guid import GuidFactory
    from nsqkit.wire.identify import Grant


class Output(Protocol):
    """Where the frames of messages wait to be sent to one client."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read the bytes that it was sent."""
        ...

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages; nsqd's timing has them wait until there are ``buffer_size`` bytes of them."""
        ...


class Subscription:
    """One consumer of a channel.

    Args:
        output: takes the frames of its messages.
        grant: of its first IDENTIFY, which nsqd's message pump uses for the whole connection.
        proximity: how near it is to the broker (see ``topology``).
        guids: the source of the broker's message ids.
        random: decides which messages are sent with a sample rate.

    Attributes:
        in_flight: the messages that it holds.
        rdy_count: how many messages it may hold.
        message_count: messages delivered so far; finish_count and requeue_count likewise.
    """

    __slots__ = (
        *("_output", "_random", "finish_count", "grant", "in_flight"),
        *("message_count", "proximity", "rdy_count", "requeue_count"),
    )

    def __init__(self, output: Output, grant: Grant, proximity: int, guids: GuidFactory, random: Random) -> None:
        self.grant = grant
        self.proximity = proximity
        self.in_flight = InFlight(guids)
        self.rdy_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._output: Output | None = output
        self._random = random

    @property
    def capacity(self) -> int:
        """How many messages it can take now; none if it is 0 or less."""
        output = self._output
        if output is None or output.is_full:
            return 0
        in_flight = self.in_flight
        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)

    def close(self) -> None:
        """Take no more messages."""
        self.rdy_count = 0
        self._output = None

    def deliver(self, frames: list[bytes], now_ns: int) -> int:
        """Send messages; return their deadline."""
        grant, output = self.grant, self._output
        assert output is not None
        deadline_ns = now_ns + grant.msg_timeout_ns
        frames = self.in_flight.add(list(map(id_of, frames)), frames, now_ns, deadline_ns)
        self.message_count += len(frames)
        output.send_messages(frames, grant.output_buffer_size if self.capacity > 0 else 0, now_ns)
        return deadline_ns

    def sample(self, frames: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return those of the messages that the consumer gets at its sample rate, and the others.

        One more in a hundred than the rate says, as in nsqd (nsqd/protocol_v2.go).
        """
        rate = self.grant.sample_rate
        chosen: list[bytes] = []
        dropped: list[bytes] = []
        for frame in frames:
            (chosen if self._random.randrange(100) <= rate else dropped).append(frame)
        return chosen, dropped
