"""A consumer of a channel: how many messages it can take, where they go, and those that it holds.

A subscription is created by SUB and belongs to the channel and to the session of the consumer. The session changes its
RDY count; the channel calls ``deliver``. Neither of them is reachable from here.

The messages that it holds (``InFlight``) are delivered and not yet finished, requeued or timed out. A message in flight
has one owner. Each subscription has its own set, so a FIN of another client does not find the message. When the
connection is lost, the set stays with the channel until its messages time out, as in nsqd.

A subscription has one message timeout, so messages that are delivered later time out later. The set is a dict in order
of delivery and serves as its own queue of deadlines: only its front has to be examined. A touched message has a
separate deadline and moves to a second dict, which is searched as a whole; few messages are ever there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeAlias

from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from random import Random

    from nsqkit.wire.identify import Grant

InFlightMessage: TypeAlias = tuple[bytes, int, int]
"""Frame as delivered, time of delivery (ns), deadline (ns)."""


class InFlight:
    """The messages in flight to one consumer.

    Args:
        guids: the source of the broker's message ids.

    Attributes:
        untouched: the messages by id, in the order of their deadlines.
        touched: those whose timeout was restarted.
    """

    __slots__ = ("_guids", "touched", "untouched")

    def __init__(self, guids: GuidFactory) -> None:
        self._guids = guids
        self.untouched: dict[bytes, InFlightMessage] = {}
        self.touched: dict[bytes, InFlightMessage] = {}

    def __len__(self) -> int:
        return len(self.untouched) + len(self.touched)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self.untouched or message_id in self.touched

    def add(self, ids: list[bytes], frames: list[bytes], now_ns: int, deadline_ns: int) -> list[bytes]:
        """Add messages that are being delivered; return their frames as they have to be sent."""
        untouched, touched = self.untouched, self.touched
        if not self._guids.gave_all and (
            not untouched.keys().isdisjoint(ids) or (touched and not touched.keys().isdisjoint(ids))
        ):
            return self._add_each(frames, now_ns, deadline_ns)
        count = len(untouched) + len(ids)
        untouched.update(zip(ids, zip(frames, repeat(now_ns), repeat(deadline_ns)), strict=False))
        if len(untouched) < count:
            for message_id in ids:
                untouched.pop(message_id, None)
            return self._add_each(frames, now_ns, deadline_ns)
        return frames

    def _add_each(self, frames: list[bytes], now_ns: int, deadline_ns: int) -> list[bytes]:
        """Add messages of which two have the same id, or one has the id of a message in flight.

        Such messages come from the disk only, written by a broker whose clock was set back. With one id, finishing one
        of them would finish both.
        """
        added = []
        for frame in frames:
            unique = self._guids.renew(frame) if id_of(frame) in self else frame
            self.untouched[id_of(unique)] = (unique, now_ns, deadline_ns)
            added.append(unique)
        return added

    def remove(self, message_id: bytes) -> bytes | None:
        """Remove a message; return its frame, None if it was not in flight."""
        message = self.untouched.pop(message_id, None) or self.touched.pop(message_id, None)
        return message[0] if message else None

    def find_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the frames of those of the messages that are in flight, each once."""
        held = (self.untouched.get(message_id) or self.touched.get(message_id) for message_id in dict.fromkeys(ids))
        return [message[0] for message in held if message]

    def find(self, ids: set[bytes]) -> set[bytes]:
        """Return those of the ids that are here."""
        return (self.untouched.keys() & ids) | (self.touched.keys() & ids)

    def remove_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remove messages that are finished; return the ids of those that were not in flight."""
        pop = self.untouched.pop
        missing = [message_id for message_id in ids if pop(message_id, None) is None]
        if missing and self.touched:
            pop = self.touched.pop
            missing = [message_id for message_id in missing if pop(message_id, None) is None]
        return missing

    def touch(self, message_id: bytes, now_ns: int, timeout_ns: int, max_timeout_ns: int) -> int | None:
        """Restart the timeout of a message, up to ``max_timeout_ns`` after delivery; return the new deadline.

        The new deadline may be earlier than the old one (nsqd/channel.go). None: not in flight.
        """
        message = self.untouched.pop(message_id, None) or self.touched.get(message_id)
        if message is None:
            return None
        frame, delivered_ns, _ = message
        deadline_ns = min(now_ns + timeout_ns, delivered_ns + max_timeout_ns)
        self.touched[message_id] = (frame, delivered_ns, deadline_ns)
        return deadline_ns

    def remove_everything(self) -> list[bytes]:
        """Remove all messages; return their frames."""
        frames = [frame for held in (self.untouched, self.touched) for frame, _, _ in held.values()]
        self.untouched.clear()
        self.touched.clear()
        return frames

    def remove_due(self, now_ns: int) -> list[bytes]:
        """Remove the messages that have timed out; return their frames."""
        due = [message_id for message_id, (_, _, deadline_ns) in self.touched.items() if deadline_ns <= now_ns]
        for message_id, (_, _, deadline_ns) in self.untouched.items():
            if deadline_ns > now_ns:
                break
            due.append(message_id)
        return [frame for message_id in due if (frame := self.remove(message_id))]

    def next_deadline(self) -> int | None:
        """Return the earliest deadline of a message, None without messages."""
        deadlines_ns = [deadline_ns for _, _, deadline_ns in self.touched.values()]
        if self.untouched:
            deadlines_ns.append(next(iter(self.untouched.values()))[2])
        return min(deadlines_ns, default=None)


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
        output: as given; None once it is closed.
        in_flight: the messages that it holds.
        rdy_count: how many messages it may hold.
        message_count: messages delivered so far; finish_count and requeue_count likewise.
    """

    __slots__ = (
        *("_random", "finish_count", "grant", "in_flight", "message_count"),
        *("output", "proximity", "rdy_count", "requeue_count"),
    )

    def __init__(self, output: Output, grant: Grant, proximity: int, guids: GuidFactory, random: Random) -> None:
        self.grant = grant
        self.proximity = proximity
        self.in_flight = InFlight(guids)
        self.rdy_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.output: Output | None = output
        self._random = random

    @property
    def capacity(self) -> int:
        """How many messages it can take now; none if it is 0 or less."""
        output = self.output
        if output is None or output.is_full:
            return 0
        in_flight = self.in_flight
        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)

    def close(self) -> None:
        """Take no more messages."""
        self.rdy_count = 0
        self.output = None

    def deliver(self, frames: list[bytes], now_ns: int) -> int:
        """Send messages; return their deadline."""
        grant, output = self.grant, self.output
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
