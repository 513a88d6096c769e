"""A topic: gives each message an id and a copy to each channel.

The rule it guards: what is published is kept. With no channel, or while paused, messages wait in the topic's own
queue; the first channel gets all that waited. A copy is not a copy: the channels share one frame.

A deferred message that has to wait here has no time yet: its delay starts when a channel gets it, as in nsqd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqkit.broker.core.channel import Channel
from nsqkit.broker.core.guid import GuidFactory
from nsqkit.broker.core.queue import DiscardBackend, MemoryBackend, MessageQueue
from nsqkit.wire.messages import ID, encode_messages
from nsqkit.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqkit.broker.core.agenda import Agenda


class Topic:
    """A topic.

    Args:
        name: its name, as on the wire.
        agenda: where it and its channels note what follows.
        node_id: the broker's, for message ids.
        mem_queue_size: messages that its queue, and each channel's, keeps in memory.

    Attributes:
        paused: messages wait in the topic while it is.
        channels: by name.
        message_count: messages published so far; message_bytes their bodies' bytes.
    """

    def __init__(self, name: bytes, agenda: Agenda, *, node_id: int, mem_queue_size: int) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.channels: dict[bytes, Channel] = {}
        self.queue = MessageQueue(mem_queue_size, DiscardBackend() if self.ephemeral else MemoryBackend())
        self._waiting_delays_ns: dict[bytes, int] = {}  # delays of deferred messages in the queue, by id
        self._agenda = agenda
        self._guids = GuidFactory(node_id)
        self._mem_queue_size = mem_queue_size

    def put(self, bodies: Sequence[bytes], now_ns: int, *, delay_ns: int = 0) -> None:
        """Publish messages, to be delivered after ``delay_ns``."""
        self.message_count += len(bodies)
        self.message_bytes += sum(map(len, bodies))
        ids = self._guids.take(len(bodies), now_ns)
        frames = encode_messages(now_ns, ids, bodies)
        if self.channels and not self.paused:
            self._fan_out(frames, now_ns, delay_ns)
            return
        waiting = len(self.queue)
        self.queue.put(frames)
        if delay_ns:
            kept = ids[: len(self.queue) - waiting]  # an ephemeral topic may have dropped some
            self._waiting_delays_ns.update(dict.fromkeys(kept, delay_ns))

    def _fan_out(self, frames: Sequence[bytes], now_ns: int, delay_ns: int) -> None:
        for channel in self.channels.values():
            if delay_ns:
                channel.put_deferred(frames, now_ns + delay_ns)
            else:
                channel.put(frames)

    def channel(self, name: bytes, now_ns: int) -> Channel:
        """Return the channel, made if it is new; the first one gets what has waited for it."""
        channel = self.channels.get(name)
        if channel is None:
            channel = Channel(name, self._agenda, mem_queue_size=self._mem_queue_size)
            self.channels[name] = channel
            self._flush(now_ns)
        return channel

    def _flush(self, now_ns: int) -> None:
        """Give the channels what has waited."""
        if self.paused or not self.channels:
            return
        frames = self.queue.take_all()
        delays_ns, self._waiting_delays_ns = self._waiting_delays_ns, {}
        if delays_ns:
            for frame in frames:
                self._fan_out((frame,), now_ns, delays_ns.get(frame[ID], 0))
        elif frames:
            self._fan_out(frames, now_ns, 0)

    def pause(self) -> None:
        """Keep what is published from now on."""
        self.paused = True

    def unpause(self, now_ns: int) -> None:
        """Give the channels what has waited, and what comes."""
        self.paused = False
        self._flush(now_ns)

    def empty(self) -> None:
        """Forget the messages that wait in the topic; the channels keep theirs."""
        self.queue.empty()
        self._waiting_delays_ns.clear()
