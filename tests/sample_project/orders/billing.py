"""The billing service: charges each order once, and publishes its invoice.

A payment that is declined is tried again after ``RETRY_DELAY``; an order that fails five times goes to the topic
``orders.dead``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from nsqkit import Consumer, DeadLetter, Message, Producer
from nsqkit.clock import Clock

ORDERS, CHANNEL, INVOICES, DEAD = "orders", "billing", "invoices", "orders.dead"
MAX_IN_FLIGHT = 10
MAX_ATTEMPTS = 5
RETRY_DELAY = 30.0


class Declined(Exception):
    """The payment was declined."""


class Billing:
    """Bills the orders of one nsqd until it is stopped.

    Args:
        nsqd: ``host:port``.
        charge: takes the payment for an order; raises ``Declined``.
        clock: the time; by default the real one.

    Attributes:
        ended: set when ``run`` returns.
    """

    def __init__(self, nsqd: str, charge: Callable[[str], Awaitable[None]], clock: Clock | None = None) -> None:
        self.billed: set[str] = set()
        self.ended = anyio.Event()
        self.charge = charge
        self.producer = Producer(nsqd, clock=clock)
        self.consumer = Consumer(
            ORDERS,
            CHANNEL,
            nsqd_tcp_addresses=[nsqd],
            clock=clock,
            max_in_flight=MAX_IN_FLIGHT,
            max_attempts=MAX_ATTEMPTS,
            default_requeue_delay=RETRY_DELAY,
            max_backoff_duration=0,
        )

    async def run(self) -> None:
        """Bill orders until ``stop``."""
        try:
            async with self.producer, self.consumer:
                await self.consume()
        finally:
            self.ended.set()

    async def consume(self) -> None:
        """Handle messages until ``stop``."""
        dead_letters = DeadLetter(self.producer, DEAD)
        await self.consumer.run(self.handle, concurrency=MAX_IN_FLIGHT, auto_touch=True, giving_up=dead_letters)

    def stop(self) -> None:
        """Let the orders that are being billed end, and return from ``run``."""
        self.consumer.stop()

    async def handle(self, message: Message) -> None:
        """Bill one order; the consumer finishes its message on return, and requeues it on an exception."""
        order = message.body.decode()
        if order in self.billed:  # nsqd delivers at least once
            return
        await self.charge(order)
        await self.producer.publish(INVOICES, order.encode())
        self.billed.add(order)
