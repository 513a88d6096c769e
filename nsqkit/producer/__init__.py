"""The producer: ``producer`` is the public class, ``blocking`` the same for threads, ``http_producer`` over HTTP.

producer ─▶ pool ─▶ publisher ─▶ policy    chooses an nsqd for each publish, and sends again
                    │ └─▶ send_window      limits the bytes without an answer
                    ▼
                    pool_connection ─▶ session ─▶ linger    one connection; single publishes become batches
"""

from __future__ import annotations

from nsqkit.producer.blocking import BlockingProducer
from nsqkit.producer.http_producer import HTTPProducer, HTTPProducerOptions
from nsqkit.producer.options import ProducerOptions
from nsqkit.producer.pool_connection import Receipt
from nsqkit.producer.producer import Producer
from nsqkit.producer.stats import NsqdStats, ProducerStats

__all__ = [
    "BlockingProducer",
    "HTTPProducer",
    "HTTPProducerOptions",
    "NsqdStats",
    "Producer",
    "ProducerOptions",
    "ProducerStats",
    "Receipt",
]
