"""The consumer: ``consumer`` and ``blocking`` for users; ``core``, ``flow`` and ``backoff`` decide, without I/O."""

from __future__ import annotations

from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.batches import Batch
from nsqkit.consumer.blocking import BlockingConsumer
from nsqkit.consumer.blocking_message import BlockingMessage
from nsqkit.consumer.confirmation import Confirmation
from nsqkit.consumer.consumer import Consumer
from nsqkit.consumer.message import Message
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.stats import BackoffStats, ConnectionStats, ConsumerStats

__all__ = [
    "BackoffState",
    "BackoffStats",
    "Batch",
    "BlockingConsumer",
    "BlockingMessage",
    "Confirmation",
    "ConnectionStats",
    "Consumer",
    "ConsumerOptions",
    "ConsumerStats",
    "Message",
]
