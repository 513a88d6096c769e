"""The producer: ``producer`` is what users hold, ``pipeline`` what it says on its connection."""

from __future__ import annotations

from nsqkit.producer.producer import Producer, ProducerOptions

__all__ = ["Producer", "ProducerOptions"]
