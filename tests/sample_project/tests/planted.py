"""Faults that are planted in the service, one in each class: ``pytest --planted=late_finish``.

The tests must fail for each of them, with a message that names the fault.
"""

from __future__ import annotations

import socket
from typing import ClassVar

import anyio
from orders.billing import DEAD, MAX_IN_FLIGHT, Billing, Declined

from nsqkit import DeadLetter, Message


class LateFinish(Billing):
    """It lets the message time out while it waits for the payment."""

    async def consume(self) -> None:
        dead_letters = DeadLetter(self.producer, DEAD)
        await self.consumer.run(self.handle, concurrency=MAX_IN_FLIGHT, giving_up=dead_letters)


class DoubleFinish(Billing):
    """It finishes the message twice."""

    async def handle(self, message: Message) -> None:
        await super().handle(message)
        message.finish()
        message.finish()


class LostCancellation(Billing):
    """It goes on when it is cancelled."""

    async def handle(self, message: Message) -> None:
        with anyio.CancelScope(shield=True):
            await super().handle(message)


class UnboundedRetry(Billing):
    """It never gives a message up."""

    async def consume(self) -> None:
        async def retry(message: Message) -> None:
            try:
                await self.handle(message)
            except Declined:
                message.requeue()

        await self.consumer.run(retry, concurrency=MAX_IN_FLIGHT, auto_touch=True)


class EarlyFinish(Billing):
    """It finishes the message before the payment."""

    async def handle(self, message: Message) -> None:
        message.finish()
        await super().handle(message)


class SwallowedError(Billing):
    """It finishes the message although the payment was declined."""

    async def handle(self, message: Message) -> None:
        try:
            await super().handle(message)
        except Declined:
            pass


class RetryWithoutDelay(Billing):
    """It retries at once."""

    async def handle(self, message: Message) -> None:
        try:
            await super().handle(message)
        except Declined:
            if message.attempts == 5:
                raise
            message.requeue(0)


class ForgottenAnswer(Billing):
    """It neither finishes nor requeues the message."""

    async def consume(self) -> None:
        async for message in self.consumer:
            await self.handle(message)


class Greedy(Billing):
    """It asks for more messages than it can handle."""

    async def consume(self) -> None:
        self.consumer.change_max_in_flight(200)
        await super().consume()


class DoubleBilling(Billing):
    """It bills an order that is delivered again."""

    async def handle(self, message: Message) -> None:
        self.billed.clear()
        await super().handle(message)


class OpenConnection(Billing):
    """It leaves a connection open."""

    left_open: ClassVar[list[socket.socket]] = []

    async def consume(self) -> None:
        host, port = self.producer.nsqd_tcp_addresses[0].split(":")
        self.left_open.append(socket.create_connection((host, int(port))))
        await super().consume()


class EndsWithBroker(Billing):
    """It ends when the broker goes away."""

    async def consume(self) -> None:
        await self.consumer.wait_connected()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super().consume)
            while not self.consumer.unconnected:
                await anyio.lowlevel.checkpoint()
            self.stop()


PLANTED: dict[str, type[Billing]] = {
    "late_finish": LateFinish,
    "double_finish": DoubleFinish,
    "lost_cancellation": LostCancellation,
    "unbounded_retry": UnboundedRetry,
    "early_finish": EarlyFinish,
    "swallowed_error": SwallowedError,
    "retry_without_delay": RetryWithoutDelay,
    "forgotten_answer": ForgottenAnswer,
    "greedy": Greedy,
    "double_billing": DoubleBilling,
    "open_connection": OpenConnection,
    "ends_with_broker": EndsWithBroker,
}
