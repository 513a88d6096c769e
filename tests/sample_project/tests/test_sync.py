"""The first tests of a synchronous project: nothing here has an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from orders.billing import Declined

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.testing import NsqdServer, NsqlookupdServer


@pytest.fixture
def consumer(nsqd: NsqdServer) -> Iterator[BlockingConsumer]:
    addresses = [nsqd.tcp_address]
    with BlockingConsumer("orders", "billing", nsqd_tcp_addresses=addresses, clock=nsqd.clock) as consumer:
        yield consumer


def test_unanswered_message_is_delivered_again(nsqd: NsqdServer, consumer: BlockingConsumer) -> None:
    nsqd.publish("orders", b"one")
    assert consumer.receive().attempts == 1
    nsqd.clock.advance(60)
    message = consumer.receive()
    assert message.attempts == 2
    message.finish()
    nsqd.wait_idle("orders")


def test_poison_message_is_given_up_after_five_attempts(nsqd: NsqdServer, consumer: BlockingConsumer) -> None:
    nsqd.inject("orders", b"poison", channel="billing", attempts=5)
    given_up = []
    consumer.change_max_in_flight(1)

    def handle(message: object) -> None:
        raise Declined

    def give_up(message: object) -> None:
        given_up.append(message)
        consumer.stop()

    consumer.run(handle, giving_up=give_up)
    assert len(given_up) == 1
    nsqd.wait_idle("orders")


def test_producer_survives_a_restart_of_the_broker(nsqd: NsqdServer) -> None:
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"one")
        nsqd.restart(keep_data=True)
        producer.publish("orders", b"two", timeout=5)
    assert nsqd.topic("orders").depth == 2


@pytest.mark.nsqlookupd(inactive_producer_timeout="300s")
def test_consumer_waits_for_the_nsqlookupd(nsqlookupd: NsqlookupdServer, make_nsqd: Callable[..., NsqdServer]) -> None:
    nsqd = make_nsqd(lookupd_tcp_address=[nsqlookupd.tcp_address], clock=nsqlookupd.clock)
    nsqd.publish("orders", b"one")
    nsqlookupd.faults.status(500, times=1)
    addresses = [nsqlookupd.http_address]
    with BlockingConsumer("orders", "billing", lookupd_http_addresses=addresses, clock=nsqd.clock) as consumer:
        nsqd.clock.advance(120)  # two polls
        consumer.receive(timeout=5).finish()
        nsqd.wait_idle("orders")


def test_slow_consumer_gets_no_more_than_it_can_hold(nsqd: NsqdServer, consumer: BlockingConsumer) -> None:
    consumer.change_max_in_flight(2)
    nsqd.publish("orders", *[b"%d" % number for number in range(10)])
    nsqd.wait_for(lambda: nsqd.topic("orders").channel("billing").in_flight == 2)
    for _ in range(10):
        consumer.receive(timeout=5).finish()
    nsqd.wait_idle("orders")
    nsqd.assert_ready_at_most(2)
