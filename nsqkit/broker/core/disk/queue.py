"""The queue of a topic or a channel: in memory first, the rest in a backend.

Memory holds at most ``mem_queue_size`` messages. Further messages go to the backend, and all after them, until the
backend is empty again; so the order is kept. The backend of an ephemeral queue drops messages, so that such a queue
keeps its oldest messages and loses the newest, as in nsqd.

A queue holds message frames (see ``nsqkit.wire.messages``), ready for their next delivery. The garbage collector does
not track ``bytes``, so it does not slow down with a million queued messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol


class Backend(Protocol):
    """The place of messages that do not fit in memory."""

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    def put(self, frames: Sequence[bytes]) -> int:
        """Add messages, in order; return how many of them, from the first on, stay in memory.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        ...

    def undo_put(self, frames: Sequence[bytes]) -> int:
        """Remove the last messages that were put; return how many. Those that cannot be removed now stay."""
        ...

    def take(self, count: int) -> list[bytes]:
        """Remove and return up to ``count`` of the oldest messages."""
        ...

    def messages(self) -> list[bytes]:
        """Return all messages, oldest first; they stay. Raise OSError if they cannot be read now."""
        ...

    def empty(self) -> None:
        """Remove all messages."""
        ...

    def delete(self) -> None:
        """Remove all messages and all files."""
        ...

    def close(self, frames: Sequence[bytes]) -> None:
        """Store all messages for the next start, if there is a place for them, and ``frames`` behind them.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        ...


class MemoryBackend(deque[bytes]):
    """Keeps messages in memory."""

    __slots__ = ()

    def put(self, frames: Sequence[bytes]) -> int:
        """Add messages, in order."""
        self.extend(frames)
        return len(frames)

    def undo_put(self, frames: Sequence[bytes]) -> int:
        """Remove the last messages that were put."""
        return len([self.pop() for _ in frames])

    def take(self, count: int) -> list[bytes]:
        """Remove and return up to ``count`` of the oldest messages."""
        return _take(self, count)

    def messages(self) -> list[bytes]:
        """Return all messages, oldest first; they stay."""
        return list(self)

    def empty(self) -> None:
        """Remove all messages."""
        self.clear()

    delete = empty

    def close(self, frames: Sequence[bytes]) -> None:
        """Do nothing: there is no next start."""


class DiscardBackend:
    """Drops messages: the backend of ephemeral topics and channels."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def put(self, frames: Sequence[bytes]) -> int:
        """Drop messages."""
        return 0

    undo_put = put

    def take(self, count: int) -> list[bytes]:
        """Return nothing."""
        return []

    def messages(self) -> list[bytes]:
        """Return nothing."""
        return []

    def empty(self) -> None:
        """Do nothing."""

    delete = empty

    def close(self, frames: Sequence[bytes]) -> None:
        """Drop messages."""


class PartlyStored(OSError):
    """Messages could not be stored: the error of the disk.

    Attributes:
        stored_count: how many of them, from the first on, are stored, and are kept.
    """

    def __init__(self, stored_count: int, error: OSError) -> None:
        super().__init__(*error.args)
        self.filename = error.filename
        self.stored_count = stored_count


class MessageQueue:
    """First in, first out, in memory and behind it.

    Args:
        mem_queue_size: the number of messages in memory.
        backend: the place of the others.

    Attributes:
        taken_at_once: the number of messages that memory may hold in addition, since consumers take them at once.
    """

    finishes = False
    """True if ``finish`` and ``put_aside`` have an effect, so that they have to be called."""

    __slots__ = ("_mem_queue_size", "_memory", "backend", "taken_at_once")

    def __init__(self, mem_queue_size: int, backend: Backend) -> None:
        self._mem_queue_size = mem_queue_size
        self._memory: deque[bytes] = deque()
        self.backend = backend
        self.taken_at_once = 0

    def __len__(self) -> int:
        return len(self._memory) + len(self.backend)

    def exceeds_memory(self, count: int) -> bool:
        """Return whether memory cannot hold ``count`` more messages."""
        return len(self._memory) + count > self._mem_queue_size

    def put(self, frames: Sequence[bytes]) -> int:
        """Add new messages at the end; return how many of them, from the first on, are in memory.

        Raises:
            PartlyStored: not all of them could be stored.
        """
        room = 0 if self.backend else self._mem_queue_size + self.taken_at_once - len(self._memory)
        if len(frames) <= room:
            self._memory.extend(frames)
            return len(frames)
        room = max(room, 0)
        self._memory.extend(frames[:room])
        had = len(self.backend)
        try:
            return room + self.backend.put(frames[room:])
        except OSError as error:
            raise PartlyStored(room + len(self.backend) - had, error) from error

    def undo_put(self, frames: Sequence[bytes]) -> int:
        """Remove the last messages that were put; return how many. Those that the backend cannot remove stay."""
        memory = self._memory
        count = len(frames)
        while count and not (memory and memory[-1] is frames[count - 1]):
            count -= 1  # this one is in the backend
        for _ in range(count):
            memory.pop()
        return count + self.backend.undo_put(frames[count:])

    def keep(self, frames: Sequence[bytes]) -> bool:
        """Add messages at the end that were accepted before; memory holds those that cannot be stored.

        Returns:
            False if memory holds messages that ``put`` would have stored in the backend.
        """
        try:
            self.put(frames)
        except PartlyStored as error:
            self._memory.extend(frames[error.stored_count :])
            return False
        return True

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Add messages at the end that were taken from this queue."""
        self.keep(frames)

    def put_aside(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Store messages that are held elsewhere, and may be put back; return them, perhaps with new ids."""
        return frames

    def finish(self, frames: Iterable[bytes]) -> None:
        """Record that messages which were taken will not be put back."""

    def take(self, count: int, size_max: int) -> list[bytes]:
        """Return up to ``count`` messages from the front, of ``size_max`` bytes together, but at least one message.

        Raises:
            OSError: they cannot be read now.
        """
        if self._memory:
            # As many as fit if all are as long as the first; otherwise thousands would be taken and put back.
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
            # Memory may hold more than its limit for a while, by less than was just taken from it.
            self._memory.extendleft(reversed(frames[kept:]))
            del frames[kept:]
        return frames

    def messages(self) -> list[bytes]:
        """Return all messages, oldest first; they stay. Raise OSError if they cannot be read now."""
        return [*self._memory, *self.backend.messages()]

    def empty(self) -> None:
        """Remove all messages."""
        self._memory.clear()
        self.backend.empty()

    def delete(self) -> None:
        """Remove all messages and all files."""
        self._memory.clear()
        self.backend.delete()

    def close(self, *others: Sequence[bytes]) -> None:
        """Store all messages for the next start: those of the backend, those in memory, then ``others``.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        self.backend.close([*self._memory, *chain(*others)])
        self._memory.clear()

    def leave(self) -> None:
        """Store all messages for the next start, also those taken and not finished, if the queue still has them.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        self.close()


def _take(frames: deque[bytes], count: int) -> list[bytes]:
    if count >= len(frames):
        taken = list(frames)
        frames.clear()
        return taken
    popleft = frames.popleft
    return [popleft() for _ in range(count)]
