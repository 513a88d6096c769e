"""The producer: ``producer`` is what users hold, ``blocking`` the same for threads, ``http_producer`` over HTTP.

producer ─▶ publisher ─▶ policy         who gets a publish, and whether it goes again
│   └──▶ outstanding    who waits until there is room
▼
destination ─▶ pipeline     one connection: publishes and their answers
└─▶ linger   single publishes become batches
"""

from __future__ import annotations

from nsqkit.producer.blocking import BlockingProducer
from nsqkit.producer.http_producer import HTTPProducer, HTTPProducerOptions
from nsqkit.producer.options import ProducerOptions
from nsqkit.producer.producer import Producer
from nsqkit.producer.receipt import Receipt
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
