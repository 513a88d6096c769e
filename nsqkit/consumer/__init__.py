"""The consumer: ``consumer`` is what users hold; ``core``, ``flow`` and ``backoff`` decide, without sockets."""

from __future__ import annotations

from nsqkit.consumer.consumer import Consumer
from nsqkit.consumer.message import Message
from nsqkit.consumer.options import ConsumerOptions

__all__ = ["Consumer", "ConsumerOptions", "Message"]
