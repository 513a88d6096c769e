"""What calls of a broker's parts have recorded, for the broker and its driver to act on once per receive buffer.

A command records what follows from it here. After the whole receive buffer, the broker delivers once from each channel
that was recorded, and its driver writes once to each session that was. Both keep the order in which they were recorded,
so that a run can be repeated.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(dict[T, None]):
    """Things to act on, each once: ``pending[thing] = None`` records one."""

    __slots__ = ()

    def take(self) -> list[T]:
        """Remove and return all, in the order in which they were recorded."""
        things = list(self)
        self.clear()
        return things


class Changes(Generic[T]):
    """What has changed in the topics of a broker.

    Attributes:
        channels: those that may have a message for a consumer that can take one.
        revision: goes up when a topic or channel is created, deleted, paused or unpaused.
        has_news: the revision went up, or a session waits for a commit, since somebody has set it to False.
        published_ns: the time of the last publish.
    """

    __slots__ = ("channels", "has_news", "published_ns", "revision")

    def __init__(self) -> None:
        self.channels: Pending[T] = Pending()
        self.revision = 0
        self.has_news = False
        self.published_ns = 0

    def raise_revision(self) -> None:
        """Record that a topic or channel was created, deleted, paused or unpaused."""
        self.revision += 1
        self.has_news = True
