"""The changes in the topics of a broker, on which the broker and its driver act once for each receive buffer.

A command records its consequences here. After the whole receive buffer, the broker delivers once from each recorded
channel, in the order in which they were recorded, so that a run can be repeated.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Changes(Generic[T]):
    """Changes in the topics of a broker.

    Attributes:
        channels: those that may have a message for a consumer that can take one.
        revision: goes up when a topic or channel is created, deleted, paused or unpaused.
        has_news: the revision went up, or a session waits for a commit, since it was last set to False.
        published_ns: the time of the last publish.
    """

    __slots__ = ("channels", "has_news", "published_ns", "revision")

    def __init__(self) -> None:
        self.channels: dict[T, None] = {}
        self.revision = 0
        self.has_news = False
        self.published_ns = 0

    def raise_revision(self) -> None:
        """Record that a topic or channel was created, deleted, paused or unpaused."""
        self.revision += 1
        self.has_news = True
