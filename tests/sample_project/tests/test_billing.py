"""The billing service on asyncio and trio, by anyio's plugin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import anyio
import pytest
from conftest import Payments
from orders.billing import Billing, Declined

from nsqkit.testing import NsqdServer

Start: TypeAlias = Callable[[Payments], AbstractAsyncContextManager[Billing]]

pytestmark = [pytest.mark.anyio, pytest.mark.nsqd(clock="manual")]


async def test_order_is_billed_once(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    nsqd.publish("orders", b"one")
    async with start(payments):
        await nsqd.wait_idle("orders")
    assert payments.charged == ["one"]
    nsqd.assert_published("invoices", "one", times=1)
    nsqd.assert_finished("one", topic="orders")


async def test_payment_may_take_longer_than_the_message_timeout(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    payments.may_end = anyio.Event()
    nsqd.publish("orders", b"one")
    async with start(payments):
        await payments.begun.wait()
        await nsqd.clock.advance(90)
        payments.may_end.set()
        await nsqd.wait_idle("orders")
    nsqd.assert_answered_once()
    nsqd.assert_delivered("orders", "billing", "one", times=1)


async def test_declined_payment_is_tried_again_later(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    payments.errors = [Declined()]
    nsqd.publish("orders", b"one")
    async with start(payments):
        await nsqd.wait_for(lambda: nsqd.journal.commands("REQ") or nsqd.journal.commands("FIN"))
        nsqd.assert_requeued("one", delay=30)
        await nsqd.clock.advance(30)
        await nsqd.wait_idle("orders")
    assert payments.charged == ["one"]


async def test_order_that_is_always_declined_goes_to_the_dead_letters(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    payments.errors = [Declined() for _ in range(20)]
    nsqd.inject("orders", b"one", channel="billing", attempts=5)
    async with start(payments):
        await nsqd.wait_for(lambda: nsqd.journal.commands("REQ") or nsqd.journal.commands("FIN"))
        nsqd.assert_published("orders.dead", "one", times=1)
        await nsqd.wait_idle("orders")


async def test_order_is_kept_until_it_is_paid(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    payments.may_end = anyio.Event()
    nsqd.publish("orders", b"one")
    async with start(payments):
        await payments.begun.wait()
        nsqd.assert_not_finished("one")
        payments.may_end.set()
        await nsqd.wait_idle("orders")


async def test_order_is_billed_once_though_its_finish_was_lost(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    nsqd.faults.drop(command="FIN", times=1)
    nsqd.publish("orders", b"one")
    async with start(payments):
        await nsqd.wait_for(lambda: nsqd.topic("invoices").message_count == 1)
        await nsqd.clock.advance(60)
        await nsqd.wait_idle("orders")
    assert payments.charged == ["one"], "an order was billed again after its message was delivered again"
    nsqd.assert_published("invoices", "one", times=1)


async def test_at_most_ten_orders_are_in_flight(nsqd: NsqdServer, start: Start) -> None:
    nsqd.publish("orders", *[b"%d" % number for number in range(100)])
    async with start(Payments()):
        await nsqd.wait_idle("orders")
    nsqd.assert_ready_at_most(10)


async def test_stop_ends_though_a_payment_hangs(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    payments.may_end = anyio.Event()
    nsqd.publish("orders", b"one")
    async with start(payments) as billing:
        await payments.begun.wait()
        billing.stop()
        await nsqd.clock.advance(billing.consumer.options.close_timeout)
        with anyio.move_on_after(1):
            await billing.ended.wait()
        is_in_time = billing.ended.is_set()
        payments.may_end.set()
    assert is_in_time, "the handler did not end when it was cancelled"
    nsqd.assert_not_finished("one")


async def test_service_survives_a_restart_of_the_broker(nsqd: NsqdServer, start: Start) -> None:
    payments = Payments()
    async with start(payments) as billing:
        nsqd.restart(keep_data=True)
        nsqd.publish("orders", b"one")
        await nsqd.clock.advance(60)  # the service dials again after a delay
        await nsqd.wait_for(lambda: payments.charged or billing.ended.is_set())
        assert not billing.ended.is_set(), "the service ended with the broker"
        await nsqd.wait_idle("orders")
    assert payments.charged == ["one"]
