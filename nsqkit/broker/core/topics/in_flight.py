"""The messages that one consumer holds: delivered, not yet finished, requeued or timed out.

The rule it guards: a message in flight has one owner. Each session has its own set, so that FIN by anybody else
finds nothing; when the session is lost its set stays with the channel until the messages time out, as in nsqd.

A session has one message timeout, so messages delivered later time out later and the set, a dict in order of
delivery, is its own queue of deadlines: looking at its front is enough. A touched message has a deadline of its
own and moves to a second dict, which is searched whole when a deadline comes; few messages are ever there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TypeAlias

from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.wire.messages import id_of

InFlightMessage: TypeAlias = tuple[bytes, int, int]
"""Frame as delivered, time of delivery (ns), deadline (ns)."""


class InFlight:
    """One consumer's messages in flight.

    Args:
        on_timeout: called with the frames that have timed out; puts them back into the channel.
        guids: gives the broker's ids.
    """

    __slots__ = ("_guids", "_on_timeout", "_touched", "_untouched", "due_ns")

    def __init__(self, on_timeout: Callable[[list[bytes]], None], guids: GuidFactory) -> None:
        self._on_timeout = on_timeout
        self._guids = guids
        self._untouched: dict[bytes, InFlightMessage] = {}
        self._touched: dict[bytes, InFlightMessage] = {}
        self.due_ns: int | None = None

    def __len__(self) -> int:
        return len(self._untouched) + len(self._touched)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._untouched or message_id in self._touched

    def add(self, ids: list[bytes], frames: list[bytes], now_ns: int, deadline_ns: int) -> list[bytes]:
        """Take over messages that are being delivered now; return their frames as they are to be sent."""
        untouched, touched = self._untouched, self._touched
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
        """Take over messages of which two have the same id, or one has that of another message in flight.

        Such messages come from the disk alone, written by a broker whose clock was set back. With one id both would be
        finished when one of them is.
        """
        added = []
        for frame in frames:
            unique = self._guids.renew(frame) if id_of(frame) in self else frame
            self._untouched[id_of(unique)] = (unique, now_ns, deadline_ns)
            added.append(unique)
        return added

    def remove(self, message_id: bytes) -> bytes | None:
        """Return the frame of a message that is in flight no longer, None if it was not."""
        message = self._untouched.pop(message_id, None) or self._touched.pop(message_id, None)
        return message[0] if message else None

    def find_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the frames of those of the messages that are in flight."""
        held = (self._untouched.get(message_id) or self._touched.get(message_id) for message_id in ids)
        return [message[0] for message in held if message]

    def remove_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remove messages that are finished; return the ids of those that were not in flight."""
        pop = self._untouched.pop
        missing = [message_id for message_id in ids if pop(message_id, None) is None]
        if missing and self._touched:
            pop = self._touched.pop
            missing = [message_id for message_id in missing if pop(message_id, None) is None]
        return missing

    def touch(self, message_id: bytes, now_ns: int, timeout_ns: int, max_timeout_ns: int) -> int | None:
        """Give a message its timeout anew, up to ``max_timeout_ns`` after delivery; return the new deadline.

        The new deadline may be earlier than the old one (nsqd, nsqd/channel.go). None: not in flight.
        """
        message = self._untouched.pop(message_id, None) or self._touched.get(message_id)
        if message is None:
            return None
        frame, delivered_ns, _ = message
        deadline_ns = min(now_ns + timeout_ns, delivered_ns + max_timeout_ns)
        self._touched[message_id] = (frame, delivered_ns, deadline_ns)
        return deadline_ns

    def take_all(self) -> list[bytes]:
        """Remove and return the frames of all messages."""
        frames = [frame for held in (self._untouched, self._touched) for frame, _, _ in held.values()]
        self._untouched.clear()
        self._touched.clear()
        return frames

    def handle_deadline(self, now_ns: int) -> int | None:
        """Time out what is due; return the next deadline, None when nothing is in flight."""
        timed_out = [
            message_id for message_id, (_, _, deadline_ns) in self._touched.items() if deadline_ns <= now_ns
        ]
        for message_id, (_, _, deadline_ns) in self._untouched.items():
            if deadline_ns > now_ns:
                break
            timed_out.append(message_id)
        if timed_out:
            self._on_timeout([frame for message_id in timed_out if (frame := self.remove(message_id))])
        return self._next_deadline()

    def _next_deadline(self) -> int | None:
        deadlines_ns = [deadline_ns for _, _, deadline_ns in self._touched.values()]
        if self._untouched:
            deadlines_ns.append(next(iter(self._untouched.values()))[2])
        return min(deadlines_ns, default=None)
