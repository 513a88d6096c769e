"""Calls on a message queue that only tests make."""

from __future__ import annotations

from nsqkit.broker.core.disk.queue import MessageQueue


def take_all(queue: MessageQueue) -> list[bytes]:
    """Take all messages, oldest first."""
    frames: list[bytes] = []
    while queue:
        frames += queue.take(1 << 30, 1 << 60)
    return frames
