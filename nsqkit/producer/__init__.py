"""The producer: ``producer`` is what users hold, ``pipeline`` what it says on its connection."""

from nsqkit.producer.producer import Producer, ProducerOptions

__all__ = ["Producer", "ProducerOptions"]
