"""What tests ask of a message queue, and production does not."""

from __future__ import annotations

from nsqkit.broker.core.topics.queue import MessageQueue


def take_all(queue: MessageQueue) -> list[bytes]:
    """Take all messages, oldest first."""
    frames: list[bytes] = []
    while queue:
        frames += queue.take(1 << 30, 1 << 60)
    return frames
