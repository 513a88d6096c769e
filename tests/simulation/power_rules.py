"""The rules of a power world that need no oracle: what clients see, what a stop keeps, and the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.simulation import data_path
from tests.simulation.broken import conclude
from tests.simulation.contents import check_depths, queues_of
from tests.simulation.refusals import Refusals

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from tests.simulation.by_hand import Disk

Contents = Counter[tuple[bytes, bytes, bytes]]
"""Messages by topic, channel (empty for the topic) and body."""


def all_in(broker: Broker) -> Contents:
    """Return all messages of a broker: those that wait, that are deferred, and that are in flight."""
    found: Contents = Counter()
    for name, topic in broker.topics.items():
        found.update((name, b"", frame[FRAME_HEADER_LENGTH:]) for frame in topic.queue.messages())
        for channel_name, channel in topic.channels.items():
            frames = [*channel.queue.messages(), *(frame for _, frame in channel.deferred.messages())]
            for subscription in channel.holders():
                held = subscription.in_flight
                frames += [message[0] for message in (*held.untouched.values(), *held.touched.values())]
            found.update((name, channel_name, frame[FRAME_HEADER_LENGTH:]) for frame in frames)
    return found


class Rules:
    """What a world has seen so far.

    Attributes:
        acknowledged: the bodies of publishes with an OK.
        finished: topic, channel and body of each message with a FIN in this life.
        refusals: those that were refused.
        may_repeat: an attempt may be delivered twice: a crash may leave a message in a topic and in its channel.
        has_partial_record: the process may have ended while it wrote a record.
    """

    def __init__(self, options: BrokerOptions, *, has_faults: bool) -> None:
        self.acknowledged: set[bytes] = set()
        self.finished: set[tuple[bytes, bytes, bytes]] = set()
        self.has_partial_record = False
        self._options, self._has_faults = options, has_faults
        self._ids: dict[bytes, bytes] = {}  # the body of each id that was delivered
        self._deferred: set[bytes] = set()
        self._not_before: dict[tuple[bytes, bytes, bytes], int] = {}  # by topic, channel or none, and body
        self.refusals = Refusals()
        self._attempts: set[tuple[bytes, bytes, bytes, int]] = set()  # with topic, channel and body
        self._kept: Contents | None = None  # by a stop
        self._is_torn = self.may_repeat = False

    # ---- clients -------------------------------------------------------------------------------------------------

    def defer(self, broker: Broker, topic_name: bytes, body: bytes, due_ns: int) -> None:
        """Record a deferred publish."""
        self._deferred.add(body)
        topic = broker.topics.get(topic_name)
        waits = topic is None or topic.paused or not topic.channels or len(topic.queue)
        if not waits and not self._has_faults:  # otherwise the delay may begin later, or be lost, as in nsqd
            self._not_before[topic_name, b"", body] = due_ns

    def requeue(self, topic: bytes, channel: bytes, body: bytes, due_ns: int) -> None:
        """Record a REQ of a message that is in flight."""
        if not self.may_repeat:
            self._not_before[topic, channel, body] = due_ns

    def delivered(self, topic: bytes, channel: bytes, frame: bytes, now_ns: int) -> None:
        """Check a message that a consumer gets: its id, its time, and the answer to its publisher."""
        attempts, message_id, body = int.from_bytes(frame[8:10], "big"), frame[10:26], frame[26:]
        # A mark that cannot be written allows an id twice, and a power cut may have changed a body.
        is_known = not self._has_faults and b"\0" not in message_id + body
        known = self._ids.setdefault(message_id, body) if is_known else body
        conclude(4, known == body, f"id {message_id!r} is that of {known!r} and of {body!r}")
        due_ns = self._not_before.get((topic, channel, body), self._not_before.get((topic, b"", body), 0))
        conclude(16, now_ns >= due_ns, f"{body!r} was delivered {due_ns - now_ns} ns early")
        self._not_before[topic, channel, body] = 0  # until it is requeued
        self.refusals.delivered(topic, channel, body)
        if not self.may_repeat:
            attempt = (topic, channel, body, attempts)
            conclude(5, attempt not in self._attempts, f"attempt {attempts} at {body!r} was delivered twice")
            self._attempts.add(attempt)

    # ---- ends ----------------------------------------------------------------------------------------------------

    def stopping(self, broker: Broker, disk: Disk, now_ns: int) -> None:
        """Record what a stop has to keep, unless a power cut may have taken some of it.

        With a disk that fails, files of a deleted topic may be back, and parts of refused publishes.
        """
        self._not_before = {key: due_ns for key, due_ns in self._not_before.items() if due_ns > now_ns}
        self._kept = None
        if self._has_faults:
            return
        with disk.checked():
            try:
                if any(len(queue) != len(queue.messages()) for queue in queues_of(broker)):
                    return
                found = all_in(broker)
            except OSError:
                return
        kept: Contents = Counter()
        for (name, place, body), count in found.items():
            topic = broker.topics[name]
            moves = not place and topic.channels and not topic.paused
            for channel in topic.channels if moves else (place,):
                kept[name, channel, body] += count
        self._kept = kept

    def removed(self, files: Iterable[str], queue: bytes, check: Callable[..., None]) -> None:
        """Check that a queue has no files any more, but for a temporary one of a sync or of a crash.

        A disk that fails may keep them, and a queue of this name has their messages then.
        """
        self.may_repeat |= self._has_faults
        if not self._is_torn and not self._has_faults:
            check(files, queue.decode(), has_temporary=True)

    def restarted(self, broker: Broker) -> None:
        """Check the depths; after a power cut, or an end in an operation, they may count messages that are lost."""
        has_lost = self._is_torn or self._has_faults or self.has_partial_record
        if not has_lost and not self._options.keep_deferred:
            check_depths(broker)

    def started(self, found: Contents) -> None:
        """Compare with what a broker finds after a stop."""
        if self._kept is None:
            return
        kept, self._kept = self._kept, None
        lost = kept - found
        if self.may_repeat:  # two copies of one message may become one
            lost = Counter({key: count for key, count in lost.items() if key not in found})
        conclude(15, not lost, f"a stop has lost {lost}")
        more = found - kept
        if self._options.durability == "fsync":
            # A deferred message that was finished may come back while others wait before it.
            more = Counter({key: count for key, count in more.items() if key in kept or key[2] not in self._deferred})
        conclude(9, self._is_torn or not more, f"after a stop {more} are there once more")

    def end_life(self, files: Mapping[str, bytes], *, is_clean: bool, killed: bool) -> None:
        """Record the end of a life, and check the files after a clean one."""
        if not killed:
            self.refusals.cut(files)
        self._is_torn |= not killed and not is_clean
        self.finished.clear()
        self.may_repeat |= not is_clean
        if not is_clean or not self._options.keep_deferred:
            self._not_before.clear()
        if not is_clean:
            self._kept = None
        # A deferred message that has not been read yet stays where it is, with its attempts of before.
        self._attempts = {key for key in self._attempts if key[2] not in self._deferred}
        if self._options.durability != "fsync" and not is_clean:
            self._ids.clear()  # a message that was in memory alone is lost, and its id may not have been noted
        elif not is_clean and not killed:
            self._ids = {key: body for key, body in self._ids.items() if body in self.acknowledged}

    def drained(self, found: Contents, files: Mapping[str, bytes], *, is_stopped: bool, has_rest: bool) -> None:
        """Check that nothing comes back after all messages are finished, and the sync of the last ones is over.

        Two cases are left out: a power cut may have brought back the names of removed files; and the rest of a write
        that failed could not be cut off, so that its messages, which stayed in memory, are in the file, too.
        """
        if self._is_torn or has_rest:
            return
        if self._has_faults:
            # A message that was refused may be in a file that could not be cut off again, and a full disk keeps old
            # positions, behind which a start does not find all files.
            found = Counter({key: count for key, count in found.items() if key in self.finished})
        conclude(9, not found, f"{found} are finished, and there once more")
        if not self._has_faults:
            data_path.check_file_counts(files)
        if is_stopped and not self.may_repeat and not self._has_faults:
            data_path.check_stopped(files, Counter(), is_durable=False, left=None)
