from __future__ import annotations

from functools import partial

import pytest

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.consumer import thread_receiver as receiver_module
from nsqkit.consumer.thread_receiver import Request, ThreadReceiver
from tests.threads import WAIT_LIMIT, start, until


@pytest.fixture
def consumer(nsqd):
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=100) as consumer:
        yield consumer


@pytest.fixture
def receiver(consumer: BlockingConsumer) -> ThreadReceiver:
    return consumer._entered()


@pytest.fixture
def producer(nsqd):
    with BlockingProducer(nsqd.tcp_address) as producer:
        yield producer


def has_waiting(receiver: ThreadReceiver, count: int) -> bool:
    return len(receiver._waiting) == count


def test_take_returns_all_waiting_messages(consumer, receiver, producer):
    producer.multi_publish("t", [b"x"] * 50)
    until(lambda: consumer.stats().waiting == 50)
    assert len(receiver.take(20, None)) == 20
    assert len(receiver.take(None, WAIT_LIMIT)) == 30
    assert receiver.take(None, 0.01) == []


def test_threads_are_served_in_order(consumer, receiver, producer):
    consumer.wait_connected()
    waiting = []
    for n in range(3):
        waiting.append(start(receiver.take, 1, None))
        until(partial(has_waiting, receiver, n + 1))
    for body in (b"0", b"1", b"2"):
        producer.publish("t", body)
    assert [future.result(WAIT_LIMIT)[0].body for future in waiting] == [b"0", b"1", b"2"]


def test_threads_that_wait_share_messages_that_arrive_together(consumer, receiver, producer):
    consumer.wait_connected()
    waiting = [start(receiver.next) for _ in range(2)]
    until(partial(has_waiting, receiver, 2))
    producer.multi_publish("t", [b"x"] * 3)
    assert all(future.result(WAIT_LIMIT) is not None for future in waiting)
    assert receiver.next(WAIT_LIMIT) is not None


@pytest.mark.parametrize("max_wait", [0.0, 60.0])
def test_batch_has_the_messages_that_a_busy_thread_has_left(consumer, receiver, producer, max_wait):
    producer.multi_publish("t", [b"x"] * 3)
    until(lambda: consumer.stats().waiting == 3)
    assert receiver.next(WAIT_LIMIT) is not None
    assert len(consumer.receive_batch(2, max_wait, timeout=WAIT_LIMIT)) == 2


def test_messages_that_a_busy_thread_has_left_are_in_the_inbox_while_it_is_used(consumer, receiver, producer):
    producer.multi_publish("t", [b"x"] * 3)
    until(lambda: consumer.stats().waiting == 3)
    assert receiver.next(WAIT_LIMIT) is not None
    loop_client = consumer._opened()

    def use() -> int:
        with receiver.using_inbox():
            receiver._on_wait(Request(1, is_shared=True))
            return len(loop_client.client.subscription.core.inbox)

    assert loop_client.ask(use) == 1


def test_thread_that_fills_a_batch_gets_messages_though_another_is_busy(consumer, receiver, producer):
    consumer.wait_connected()
    batch = start(partial(consumer.receive_batch, 2, 0.01, timeout=WAIT_LIMIT))
    until(lambda: consumer._opened()._task_count == 2)
    message = start(receiver.next)
    until(partial(has_waiting, receiver, 1))
    producer.multi_publish("t", [b"x"] * 3)
    assert message.result(WAIT_LIMIT) is not None
    assert len(batch.result(WAIT_LIMIT)) == 2


def test_thread_after_its_timeout_gets_no_messages(receiver, producer, consumer):
    assert receiver.take(None, 0.01) == []
    assert not receiver._waiting
    producer.publish("t", b"x")
    until(lambda: consumer.stats().waiting == 1)


def test_messages_taken_for_interrupted_thread_are_requeued(consumer, receiver, producer):
    producer.multi_publish("t", [b"x"] * 3)
    until(lambda: consumer.stats().waiting == 3)
    request, other = Request(2, is_shared=False), Request(2, is_shared=False)
    loop_client = consumer._opened()
    loop_client.ask(lambda: receiver._on_wait(request))
    assert len(request.get()) == 2
    loop_client.ask(lambda: receiver._on_interrupt(request))
    assert len(receiver.take(1, None)) == 1
    until(lambda: consumer.stats().requeued == 2)
    until(lambda: consumer.stats().waiting == 2)  # they are delivered again
    loop_client.ask(lambda: receiver._withdraw(other))  # it has no effect


def test_finished_messages_are_collected(consumer, receiver, producer, monkeypatch):
    monkeypatch.setattr(receiver_module, "FINISH_DELAY", 0.2)
    producer.multi_publish("t", [b"x"] * 100)
    until(lambda: consumer.stats().waiting == 100)
    visits = []
    finish = ThreadReceiver._finish_repeatedly

    def count(receiver: ThreadReceiver) -> None:
        visits.append(len(receiver._finished))
        finish(receiver)

    monkeypatch.setattr(ThreadReceiver, "_finish_repeatedly", count)
    for message in receiver.take(None, None):
        message.finish()
    until(lambda: not receiver._is_finishing)
    assert sum(visits) == 100
    assert len(visits) < 50
    assert visits[-1] == 0
    assert consumer.stats().finished == 100


def test_call_finishes_collected_messages_first(consumer, receiver, producer, monkeypatch):
    monkeypatch.setattr(receiver_module, "FINISH_DELAY", 3600.0)
    producer.multi_publish("t", [b"x"] * 3)
    until(lambda: consumer.stats().waiting == 3)
    first, second, third = receiver.take(None, None)
    first.finish()
    until(lambda: not receiver._finished)  # the event loop would check again in an hour
    second.finish()
    third.touch()
    assert not receiver._finished
    assert second.delivery.is_answered


def test_waiting_thread_finishes_collected_messages_first(consumer, receiver, producer, monkeypatch):
    monkeypatch.setattr(receiver_module, "FINISH_DELAY", 3600.0)
    producer.multi_publish("t", [b"x"] * 2)
    until(lambda: consumer.stats().waiting == 2)
    first, second = receiver.take(None, None)
    first.finish()
    until(lambda: not receiver._finished)
    second.finish()
    assert receiver.take(None, 0) == []
    until(lambda: consumer.stats().finished == 2)


def test_interrupted_finish_does_not_block_later_ones(consumer, receiver, producer, monkeypatch):
    producer.multi_publish("t", [b"x"] * 2)
    until(lambda: consumer.stats().waiting == 2)
    first, second = receiver.take(None, None)

    def interrupt(function: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(receiver, "_put", interrupt)
    with pytest.raises(KeyboardInterrupt):
        first.finish()
    monkeypatch.undo()
    second.finish()
    until(lambda: consumer.stats().finished == 2)
