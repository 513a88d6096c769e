"""The queue of a topic or a channel: memory first, what does not fit in a backend behind it.

The rule it guards: memory holds at most ``mem_queue_size`` messages. What comes when it is full goes to the
backend, and what comes after that follows it there until the backend is empty again, so that nothing is overtaken
for as long as there is more to come. An ephemeral queue has a backend that drops, so it keeps its oldest messages
and loses the newest, as nsqd's does.

A queue holds message frames (see ``nsqkit.wire.messages``), ready for their next delivery. ``bytes`` are nothing
to the garbage collector, so a million queued messages cost it nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol


class Backend(Protocol):
    """Where messages wait that have no room in memory."""

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    def put(self, frames: Sequence[bytes]) -> int:
        """Take messages, in order; return how many of them, from the first on, stay in memory.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        ...

    def take(self, count: int) -> list[bytes]:
        """Return up to ``count`` of the oldest messages."""
        ...

    def empty(self) -> None:
        """Forget all."""
        ...

    def delete(self) -> None:
        """Forget all, and leave no trace."""
        ...

    def close(self, frames: Sequence[bytes]) -> None:
        """Keep all for the next start, if there is a place for it, and ``frames`` behind what is there.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        ...


class MemoryBackend:
    """Keeps what overflows in memory as well."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frames: Sequence[bytes]) -> int:
        """Take messages, in order."""
        self._frames.extend(frames)
        return len(frames)

    def take(self, count: int) -> list[bytes]:
        """Return up to ``count`` of the oldest messages."""
        return _take(self._frames, count)

    def empty(self) -> None:
        """Forget all."""
        self._frames.clear()

    delete = empty

    def close(self, frames: Sequence[bytes]) -> None:
        """Do nothing: there is no next start."""


class DiscardBackend:
    """Drops what overflows: the backend of ephemeral topics and channels."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def put(self, frames: Sequence[bytes]) -> int:
        """Drop messages."""
        return 0

    def take(self, count: int) -> list[bytes]:
        """Return nothing."""
        return []

    def empty(self) -> None:
        """Do nothing."""

    delete = empty

    def close(self, frames: Sequence[bytes]) -> None:
        """Drop messages."""


class MessageQueue:
    """First in, first out, in memory and behind it.

    Args:
        mem_queue_size: messages that memory holds.
        backend: takes the others.
    """

    finishes = False
    """Whether ``finish`` and ``put_aside`` mean something to it, so that they have to be called."""

    __slots__ = ("_mem_queue_size", "_memory", "backend")

    def __init__(self, mem_queue_size: int, backend: Backend) -> None:
        self._mem_queue_size = mem_queue_size
        self._memory: deque[bytes] = deque()
        self.backend = backend

    def __len__(self) -> int:
        return len(self._memory) + len(self.backend)

    def put(self, frames: Sequence[bytes]) -> int:
        """Add new messages at the end; return how many of them, from the first on, are in memory.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        room = 0 if self.backend else self._mem_queue_size - len(self._memory)
        if len(frames) <= room:
            self._memory.extend(frames)
            return len(frames)
        room = max(room, 0)
        self._memory.extend(frames[:room])
        return room + self.backend.put(frames[room:])

    def keep(self, frames: Sequence[bytes]) -> bool:
        """Add messages at the end that have been accepted already; where there is no place, memory holds them.

        Returns:
            Whether all are where ``put`` would have them.
        """
        had = len(self)
        try:
            self.put(frames)
        except OSError:
            self._memory.extend(frames[len(self) - had :])
            return False
        return True

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Add messages at the end that were taken from this queue."""
        self.keep(frames)

    def put_aside(self, frames: Sequence[bytes]) -> None:
        """Take note of messages that are held elsewhere, and may be put back."""

    def finish(self, frames: Iterable[bytes]) -> None:
        """Take note that messages which were taken will not be put back."""

    def take(self, count: int, size_max: int) -> list[bytes]:
        """Return up to ``count`` messages from the front, of ``size_max`` bytes together, but at least one.

        Raises:
            OSError: they cannot be read now.
        """
        if self._memory:
            # No more than there can be if all are like the first, or thousands would be taken to be put back.
            frames = _take(self._memory, min(count, size_max // len(self._memory[0]) or 1))
        else:
            frames = self.backend.take(count)
        if sum(map(len, frames)) > size_max:
            size = kept = 0
            for frame in frames:
                size += len(frame)
                if size > size_max and kept:
                    break
                kept += 1
            # What goes back may overfill memory for as long as the receiver is slow, by less than it just gave.
            self._memory.extendleft(reversed(frames[kept:]))
            del frames[kept:]
        return frames

    def empty(self) -> None:
        """Forget all messages."""
        self._memory.clear()
        self.backend.empty()

    def delete(self) -> None:
        """Forget all messages, and leave no trace."""
        self._memory.clear()
        self.backend.delete()

    def close(self, *others: Sequence[bytes]) -> None:
        """Keep all messages for the next start: those in memory, then ``others``, behind what the backend has already.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        self.backend.close([*self._memory, *chain(*others)])
        self._memory.clear()

    def leave(self) -> None:
        """Keep all messages for the next start, also those taken and not finished, as far as the queue still has them.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        self.close()


def _take(frames: deque[bytes], count: int) -> list[bytes]:
    if count >= len(frames):
        taken = list(frames)
        frames.clear()
        return taken
    popleft = frames.popleft
    return [popleft() for _ in range(count)]
