"""A topic: gives each message an id, and the message to each channel.

Messages wait in the topic's own queue while there is no channel, while the topic is paused, and until it has been
started. Then the channels get the waiting messages, a part at a time, and new messages wait behind those. The channels
share one frame of a message.

A deferred message that waits here has no time yet: its delay starts when a channel gets it, as in nsqd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.queue import PartlyStored
from nsqkit.broker.core.topics.channel import READ_PAUSE_NS, Channel
from nsqkit.broker.core.topics.latency import Latency
from nsqkit.wire.messages import encode_messages, id_of
from nsqkit.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqkit.broker.core.changes import Changes
    from nsqkit.broker.core.disk.guid import Run
    from nsqkit.broker.core.disk.storage import Storage
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.timers import Timers

PART_COUNT: Final = 10_000
PART_SIZE: Final = 4 << 20
"""Waiting messages, and bytes of them, that the channels get at once."""


class Topic:
    """A topic; its messages wait until ``start``, unless it is ``started``.

    Attributes:
        paused: messages wait in the topic.
        channels: by name.
        message_count: messages published so far; message_bytes their bodies' bytes.
        queue: the messages that wait here; waiting_delays_ns are the delays of the deferred ones, by id.
        due_ns: when the channels get the next part of the waiting messages.
    """

    def __init__(
        self,
        name: bytes,
        timers: Timers,
        changes: Changes[Channel],
        storage: Storage,
        options: BrokerOptions,
        *,
        started: bool = True,
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.channels: dict[bytes, Channel] = {}
        self.queue = storage.open_queue(name, ephemeral=self.ephemeral)
        self.due_ns: int | None = None
        self._started = started
        self._flows = False  # the channels get new messages at once
        # How many waiting messages keep their delays. nsqd has room for as many in memory, regardless of those on disk.
        self._delays_left = self._delays_max = 0 if self.ephemeral else options.mem_queue_size
        self._delays = storage.deferred_times(name, ephemeral=self.ephemeral)
        self.waiting_delays_ns = self._delays.by_id  # of deferred messages in the queue
        # Channels that have got a deferred message which others could not store.
        self._given_to: dict[bytes, list[Channel]] = {}
        self._timers = timers
        self._changes = changes
        self._storage = storage
        self._options = options
        self._guids = storage.guids

    # ---- in ----------------------------------------------------------------------------------------------------

    def put(self, bodies: Sequence[bytes], now_ns: int, *, delay_ns: int = 0, one_by_one: bool = False) -> None:
        """Publish messages.

        Args:
            bodies: of the messages.
            now_ns: the time.
            delay_ns: they are delivered after this time.
            one_by_one: if not all of them can be stored, the first ones that every channel could store are kept.

        Raises:
            PartlyStored: a channel could not store all of them. Of the others, a channel keeps those alone that a disk
                queue cannot remove, since they are in a complete file or the disk does not cut them off.
            OSError: the deferred messages could not be stored.
        """
        self._changes.published_ns = now_ns
        runs = self._guids.take(len(bodies), now_ns)
        prefix, ids = runs[0]
        if len(runs) == 1:
            frames = encode_messages(now_ns, ids, bodies, prefix)
        else:
            frames = _encode_runs(now_ns, runs, bodies)
        try:
            if not self._flows:
                self._put_waiting(frames, delay_ns, one_by_one)
            elif delay_ns:
                for channel in self.channels.values():
                    channel.put_deferred(frames, now_ns + delay_ns)
            else:
                self._put(frames, one_by_one)
        except OSError as error:
            bodies = bodies[: error.stored_count] if isinstance(error, PartlyStored) else ()
            raise
        finally:
            self.message_count += len(bodies)
            self.message_bytes += sum(map(len, bodies))

    def _put(self, frames: Sequence[bytes], one_by_one: bool) -> None:
        failure, stored = None, frames
        put_counts: list[int] = []
        for channel in self.channels.values():
            put_counts.append(len(stored))
            try:
                channel.put(stored)
            except PartlyStored as error:
                put_counts[-1] = error.stored_count
                failure, stored = error, stored[: error.stored_count]
        if failure is not None:
            kept_count = len(stored) if one_by_one else 0
            for channel, put_count in zip(self.channels.values(), put_counts, strict=True):
                channel.undo_put(frames[kept_count:put_count])
            raise PartlyStored(kept_count, failure) from failure

    def _put_waiting(self, frames: Sequence[bytes], delay_ns: int, one_by_one: bool) -> None:
        try:
            in_memory = max(self.queue.put(frames), min(self._delays_left, len(frames)))
        except PartlyStored as error:
            if one_by_one:
                raise
            self.queue.undo_put(frames[: error.stored_count])
            raise PartlyStored(0, error) from error
        self._delays_left = max(self._delays_left - len(frames), 0)
        if delay_ns:
            # The delay of a message that does not fit in memory is lost, as in nsqd, without --keep-deferred.
            kept = frames if self._delays.has_file else frames[:in_memory]
            self.waiting_delays_ns.update(dict.fromkeys(map(id_of, kept), delay_ns))

    # ---- out ---------------------------------------------------------------------------------------------------

    def channel(self, name: bytes, now_ns: int) -> Channel:
        """Return the channel, created if it is new; the first one gets the waiting messages."""
        channel = self.channels.get(name)
        if channel is None:
            queue_name, ephemeral = self.name + b":" + name, is_ephemeral(name)
            queue = self._storage.open_queue(queue_name, ephemeral=ephemeral)
            deferred_times = self._storage.deferred_times(queue_name, ephemeral=ephemeral)
            latency = self._latency(now_ns)
            channel = Channel(name, self._timers, self._changes, queue, deferred_times, latency)
            self.channels[name] = channel
            self._changes.raise_revision()
            self._changes.channels[channel] = None  # its files may hold messages
            self._flush(now_ns)
        return channel

    def _latency(self, now_ns: int) -> Latency | None:
        percentiles = self._options.e2e_processing_latency_percentiles
        window_ns = self._options.e2e_processing_latency_window_time_ns
        return Latency(percentiles, window_ns, now_ns) if percentiles else None

    def start(self, channel_names: Iterable[bytes], now_ns: int) -> dict[bytes, OSError]:
        """Create the channels of these names that are new, and begin to give messages to all channels.

        Returns:
            The errors of the channels whose files cannot be opened; they do not exist then.
        """
        failures: dict[bytes, OSError] = {}
        for name in channel_names:
            try:
                self.channel(name, now_ns)
            except OSError as error:
                failures[name] = error
        self._started = True
        self._flush(now_ns)
        return failures

    def _flush(self, now_ns: int) -> None:
        again_ns = self.handle_deadline(now_ns)
        if again_ns is not None:
            self._timers.schedule(self, again_ns)

    def handle_deadline(self, now_ns: int) -> int | None:
        """Give the channels a part of the waiting messages; return when to give them the next part."""
        if self.paused or not self._started or not self.channels:
            self._flows = False
            return None
        given = 0
        try:
            while given < PART_COUNT and (frames := self.queue.take(PART_COUNT - given, PART_SIZE)):
                self._give(frames, now_ns)
                given += len(frames)
        except OSError:  # messages on disk cannot be read now, or the channels cannot store them
            return now_ns + READ_PAUSE_NS
        self._flows = not self.queue
        if self._flows:
            self._delays_left = self._delays_max
        return None if self._flows else now_ns

    def _give(self, frames: Sequence[bytes], now_ns: int) -> None:
        """Give messages to the channels.

        Raises:
            OSError: a deferred one could not be stored; it waits here again, and so do those behind it.
        """
        delays_ns = self.waiting_delays_ns
        at_once = [frame for frame in frames if id_of(frame) not in delays_ns] if delays_ns else frames
        are_safe = [channel.put_waiting(at_once) for channel in self.channels.values()]
        if all(are_safe):
            self.queue.finish(at_once)
        if len(at_once) < len(frames):
            deferred = [frame for frame in frames if id_of(frame) in delays_ns]
            delays = [delays_ns[id_of(frame)] for frame in deferred]
            for number, frame in enumerate(deferred):
                try:
                    self._defer(frame, now_ns + delays[number])
                except OSError:
                    self.queue.put_back(deferred[number:])
                    raise
                delays_ns.pop(id_of(frame), None)  # another program may have stored a message with the same id
                self.queue.finish((frame,))

    def _defer(self, frame: bytes, due_ns: int) -> None:
        given = self._given_to.pop(id_of(frame), ())
        for number, channel in enumerate(channels := list(self.channels.values())):
            if channel in given:
                continue
            try:
                channel.put_deferred((frame,), due_ns)
            except OSError:
                self._given_to[id_of(frame)] = [*given, *channels[:number]]
                raise

    # ---- from outside ------------------------------------------------------------------------------------------

    def remove_channel(self, name: bytes) -> Channel:
        """Remove a channel, and return it; raise KeyError if there is none."""
        channel = self.channels.pop(name)
        self._flows = self._flows and bool(self.channels)
        self._changes.raise_revision()
        return channel

    def pause(self) -> None:
        """Have new messages wait in the topic."""
        self.paused = True
        self._flows = False
        self._changes.raise_revision()

    def unpause(self, now_ns: int) -> None:
        """Give the channels the waiting messages, and new ones."""
        self.paused = False
        self._changes.raise_revision()
        self._flush(now_ns)

    def empty(self) -> None:
        """Remove the messages that wait in the topic; the channels keep theirs."""
        self.queue.empty()
        self._delays_left = self._delays_max
        self.waiting_delays_ns.clear()
        self._given_to.clear()

    def delete(self) -> None:
        """Remove the messages that wait in the topic, and all files."""
        self.queue.delete()
        self._delays.delete()
        self._timers.cancel(self)

    def close(self, *, names_are_saved: bool = True) -> list[OSError]:
        """Store all messages, the channels' too, for the next start; return the errors.

        Args:
            names_are_saved: all channels are named on disk; otherwise the next start may not find their messages.
        """
        self._delays.write({})
        failures = _failures(channel.close for channel in self.channels.values())
        # Messages that no channel has for certain are still in the topic's files, with --durability=fsync.
        is_safe = names_are_saved and not failures
        return failures + _failures([self.queue.close if is_safe else self.queue.leave])


def _failures(closings: Iterable[Callable[[], None]]) -> list[OSError]:
    failures = []
    for close in closings:
        try:
            close()
        except OSError as error:
            failures.append(error)
    return failures


def _encode_runs(now_ns: int, runs: Sequence[Run], bodies: Sequence[bytes]) -> list[bytes]:
    frames: list[bytes] = []
    for prefix, ids in runs:
        frames += encode_messages(now_ns, ids, bodies[len(frames) : len(frames) + len(ids)], prefix)
    return frames
