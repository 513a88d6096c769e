from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial

import pytest

from nsqkit import BlockingProducer
from nsqkit.client.serializers import JSON
from nsqkit.clock import ManualClock
from nsqkit.errors import Closed, NotConnected, OptionError, PublishTimeout, WouldWait
from nsqkit.loop_thread import portal_provider
from nsqkit.testing.servers import NsqdServer
from tests.threads import WAIT_LIMIT, interrupted_once, silent_nsqd, start, until, unused_address


def depth(nsqd: NsqdServer, name: bytes = b"t") -> int:
    return nsqd.inspect(lambda broker: broker.topics[name].message_count)


@pytest.fixture
def producer(nsqd: NsqdServer):
    with BlockingProducer(nsqd.tcp_address, nsqd_http_addresses=[nsqd.http_address]) as producer:
        yield producer


# ---- publishing -----------------------------------------------------------------------------------------------------


def test_messages_of_every_publish_method_arrive(producer, nsqd):
    producer.publish("t", b"1")
    producer.publish("t", b"1", key="k", timeout=WAIT_LIMIT)
    producer.multi_publish("t", [b"1", b"2"])
    producer.multi_publish("t", [b"1", b"2"], timeout=WAIT_LIMIT)
    producer.deferred_publish("t", b"1", 0.1)
    producer.deferred_publish("t", b"1", 0.1, timeout=WAIT_LIMIT)
    assert depth(nsqd) == 8
    assert producer.stats().message_count == 8
    assert producer.is_connected


def test_messages_of_nowait_methods_arrive(producer, nsqd):
    producer.wait_connected(WAIT_LIMIT)
    futures = [producer.publish_nowait("t", b"1") for _ in range(100)]
    futures.append(producer.multi_publish_nowait("t", [b"1", b"2"], key=b"k"))
    futures.append(producer.deferred_publish_nowait("t", b"1", 0.1))
    assert [future.result(WAIT_LIMIT) for future in futures] == [None] * 102
    assert depth(nsqd) == 103


def test_nowait_methods_do_not_wait_for_a_connection():
    with unused_address() as address, BlockingProducer(address) as producer:
        assert not producer.is_connected
        with pytest.raises(NotConnected, match=rf"^no connection to {address} within 0\.01 seconds"):
            producer.wait_connected(timedelta(milliseconds=10))
        with pytest.raises(WouldWait):
            producer.publish_nowait("t", b"1").result(WAIT_LIMIT)


@pytest.mark.parametrize(
    "options",
    [
        {"publish_attempts": 3},
        {"publish_timeout": WAIT_LIMIT},
        {"linger": 0.01},
        {"max_outstanding_bytes": 300},
    ],
    ids=lambda options: next(iter(options)),
)
def test_many_threads_publish_with_any_options(nsqd, options):
    with BlockingProducer(nsqd.tcp_address, **options) as producer, ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda n: producer.publish("t", b"x" * 100), range(200)):
            pass
        assert producer.stats().message_count == 200
    assert depth(nsqd) == 200


def test_topics_and_channels_are_created(producer, nsqd):
    producer.ensure_topic("t")
    producer.ensure_channel("t", "c")
    assert nsqd.inspect(lambda broker: list(broker.topics[b"t"].channels)) == [b"c"]


def test_a_serializer_makes_bodies(nsqd):
    with BlockingProducer(nsqd.tcp_address, serializer=JSON) as producer:
        producer.publish("t", {"a": 1})
    assert depth(nsqd) == 1


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_on_creation():
    with pytest.raises(OptionError, match="policy"):
        BlockingProducer("127.0.0.1:4150", policy="worst")
    with pytest.raises(OptionError, match="nsqd_tcp_addresses"):
        BlockingProducer()


def test_a_wrong_publish_is_refused(producer):
    with pytest.raises(OptionError, match="topic"):
        producer.publish("no topic", b"1")
    with pytest.raises(OptionError, match="body"):
        producer.publish("t", b"")
    with pytest.raises(OptionError, match="timeout"):
        producer.publish("t", b"1", timeout=-1)
    with pytest.raises(OptionError, match="body"):
        producer.publish_nowait("t", b"").result(WAIT_LIMIT)


@pytest.mark.parametrize("options", [{}, {"publish_attempts": 3}], ids=["short", "long"])
def test_publish_without_an_nsqd_raises_not_connected(options):
    with (
        unused_address() as address,
        BlockingProducer(address, connect_timeout=0.05, **options) as producer,
        pytest.raises(NotConnected),
    ):
        producer.publish("t", b"1")


def test_a_timeout_ends_a_publish():
    with silent_nsqd() as address, BlockingProducer(address) as producer:
        producer.ping()
        with pytest.raises(PublishTimeout):
            producer.publish("t", b"1", timeout=0.05)


def test_timeout_of_a_publish_follows_the_clock():
    clock = ManualClock()
    with silent_nsqd() as address, portal_provider() as portal:
        producer = BlockingProducer(address, clock=clock).open()
        producer.ping()
        publish = start(partial(producer.publish, "t", b"1", timeout=3600.0))
        until(lambda: portal.call(clock.advance, 3600.0) or publish.done())
        with pytest.raises(PublishTimeout):
            publish.result()
        closing = start(producer.close)
        until(lambda: portal.call(clock.advance, 3600.0) or closing.done())


# ---- the end --------------------------------------------------------------------------------------------------------


def test_methods_outside_of_the_block_raise_closed(nsqd):
    producer = BlockingProducer(nsqd.tcp_address)
    for _ in range(2):
        for publish in (producer.publish, producer.publish_nowait):
            with pytest.raises(Closed):
                publish("t", b"1")
        assert not producer.is_connected
        with producer:
            producer.publish("t", b"1")
    assert depth(nsqd) == 2


@pytest.mark.parametrize("options", [{}, {"publish_attempts": 3}], ids=["short", "long"])
def test_close_ends_calls_that_wait_for_a_connection(options):
    with unused_address() as address:
        producer = BlockingProducer(address, connect_timeout=3600.0, **options).open()
        publishing = [start(producer.publish, "t", b"1") for _ in range(3)]
        until(lambda: producer.stats().waiting_count == 3)
        producer.close()
        for future in publishing:
            with pytest.raises(Closed):
                future.result(WAIT_LIMIT)


def test_close_ends_calls_that_wait_for_an_answer(monkeypatch):
    monkeypatch.setattr("nsqkit.producer.pool.DRAIN_TIMEOUT", 0.05)
    with silent_nsqd() as address:
        producer = BlockingProducer(address).open()
        producer.ping()
        publishing = [start(producer.publish, "t", b"1"), producer.publish_nowait("t", b"1")]
        until(lambda: producer.stats().nsqds[0].outstanding_count == 2)
        producer.close()
        for future in publishing:
            assert future.exception(WAIT_LIMIT) is not None


def test_threads_that_publish_during_close_get_closed(nsqd):
    producer = BlockingProducer(nsqd.tcp_address).open()
    begun = threading.Barrier(5)

    def work() -> None:
        producer.publish("t", b"1")
        begun.wait(WAIT_LIMIT)
        while True:
            producer.publish("t", b"1")

    working = [start(work) for _ in range(4)]
    begun.wait(WAIT_LIMIT)
    producer.close()
    wait(working, WAIT_LIMIT)
    assert {type(future.exception(0)) for future in working} == {Closed}


@pytest.mark.parametrize("timeout", [None, 3600.0], ids=["short", "long"])
def test_ctrl_c_leaves_nothing_running(timeout, monkeypatch):
    monkeypatch.setattr("nsqkit.producer.pool.DRAIN_TIMEOUT", 0.05)
    before = portal_provider().thread
    with silent_nsqd() as address:
        with pytest.raises(KeyboardInterrupt), BlockingProducer(address) as producer:
            producer.ping()
            with interrupted_once(lambda: producer.stats().nsqds[0].outstanding_count):
                producer.publish("t", b"1", timeout=timeout)
        assert portal_provider().thread is before


def test_producer_in_another_process_is_closed_until_it_is_opened_there(nsqd, monkeypatch):
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("t", b"1")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        for use in (producer.publish, producer.publish_nowait):
            with pytest.raises(Closed, match="another process"):
                use("t", b"1")
        assert not producer.is_connected
        monkeypatch.undo()
        producer.publish("t", b"1")
    assert depth(nsqd) == 2


def test_the_event_loop_thread_is_refused(producer):
    future = producer.publish_nowait("t", b"")
    future.exception(WAIT_LIMIT)
    with portal_provider() as portal, pytest.raises(RuntimeError, match="would wait for itself"):
        portal.call(producer.publish, "t", b"1")
