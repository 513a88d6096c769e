from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import wait
from datetime import timedelta
from functools import partial

import pytest

from nsqkit import BlockingConsumer, BlockingMessage, BlockingProducer, Message, Producer
from nsqkit.broker.core.broker import Broker
from nsqkit.clock import ManualClock
from nsqkit.consumer import BackoffState
from nsqkit.consumer.dead_letter import DeadLetter, GivenUp
from nsqkit.errors import Closed, NotConnected, OptionError
from nsqkit.loop_thread import PortalProvider, portal_provider
from nsqkit.testing.servers import NsqdServer
from tests.threads import WAIT_LIMIT, interrupted_once, start, until, unused_address


def make(nsqd: NsqdServer, **options) -> BlockingConsumer:
    return BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], **{"max_in_flight": 100, **options})


@pytest.fixture
def consumer(nsqd):
    with make(nsqd) as consumer:
        yield consumer


def fill(nsqd: NsqdServer, *bodies: bytes) -> None:
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies)


def take(consumer: BlockingConsumer) -> BlockingMessage:
    """Return the next message."""
    message = consumer.receive(WAIT_LIMIT)
    assert message is not None
    return message


def left(nsqd: NsqdServer) -> int:
    """Return how many messages of the channel are not finished."""

    def look(broker: Broker) -> int:
        channel = broker.topics[b"t"].channels[b"c"]
        return len(channel.queue) + len(channel.deferred) + channel.in_flight_count

    return nsqd.inspect(look)


def waiting(nsqd: NsqdServer) -> int:
    """Return how many messages were requeued or never taken."""
    return nsqd.inspect(lambda broker: len(broker.topics[b"t"].channels[b"c"].queue))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


# ---- ways of receiving ----------------------------------------------------------------------------------------------


def test_time_left_follows_the_clock(nsqd):
    clock = ManualClock()
    fill(nsqd, b"x")
    with portal_provider() as portal, make(nsqd, clock=clock) as consumer:
        message = take(consumer)
        assert message.time_left == 60.0
        portal.call(clock.advance, 20.0)
        assert message.time_left == 40.0
        message.finish()


def test_iteration_ends_at_stop(consumer, nsqd):
    fill(nsqd, *numbers(250))
    bodies = []
    for message in consumer:
        bodies.append(message.body)
        message.finish()
        if len(bodies) == 250:
            consumer.stop()
    assert sorted(bodies) == sorted(numbers(250))
    until(lambda: left(nsqd) == 0)


def test_receive_returns_message_or_none_after_timeout(consumer, nsqd):
    assert consumer.receive(timeout=0.01) is None
    assert consumer.receive(timeout=0) is None
    fill(nsqd, b"1", b"2")
    messages = [take(consumer), take(consumer)]
    assert [message.body for message in messages] == [b"1", b"2"]
    assert consumer.receive(timeout=0.01) is None
    for message in messages:
        message.finish()
    until(lambda: consumer.stats().finished == 2)


@pytest.mark.parametrize("max_wait", [0.0, 60.0])
def test_batches_respect_max_messages(consumer, nsqd, max_wait):
    fill(nsqd, *numbers(40))
    sizes = []
    for batch in consumer.batches(10, max_wait):
        sizes.append(len(batch))
        for message in batch:
            message.finish()
        if sum(sizes) == 40:
            consumer.stop()
    assert max(sizes) <= 10
    if max_wait:
        assert sizes == [10] * 4


def test_batch_finish_skips_answered_messages(consumer, nsqd):
    fill(nsqd, *numbers(10))
    left_over = 10
    while left_over:
        batch = consumer.receive_batch(10, timeout=WAIT_LIMIT)
        batch[0].finish()
        batch.finish()
        left_over -= len(batch)
    until(lambda: left(nsqd) == 0)
    assert consumer.stats().finished == 10


@pytest.mark.parametrize("max_wait", [0.0, 60.0])
def test_receive_batch_returns_batch_or_empty_after_timeout(consumer, nsqd, max_wait):
    assert consumer.receive_batch(10, max_wait, timeout=0.01) == []
    fill(nsqd, *numbers(10))
    assert consumer.receive_batch(10, max_wait, timeout=WAIT_LIMIT)


def test_receive_batch_returns_messages_that_wait_at_its_timeout(consumer, nsqd):
    fill(nsqd, b"1")
    until(lambda: consumer.stats().waiting == 1)
    assert [message.body for message in consumer.receive_batch(10, 60.0, timeout=0.01)] == [b"1"]


def test_invalid_batch_limits_are_refused(consumer):
    for limits in ((0, 0.0), (None, 1.0)):
        with pytest.raises(OptionError):
            consumer.batches(*limits)
        with pytest.raises(OptionError):
            consumer.receive_batch(*limits)


def test_threads_share_messages(consumer, nsqd):
    def work() -> list[bytes]:
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            message.finish()
        return bodies

    working = [start(work) for _ in range(4)]
    fill(nsqd, *numbers(1000))
    until(lambda: consumer.stats().finished == 1000)
    consumer.stop()
    bodies = [body for future in working for body in future.result(WAIT_LIMIT)]
    assert sorted(bodies) == sorted(numbers(1000))


def test_timed_out_message_is_not_begun():
    with NsqdServer(clock="manual") as nsqd, make(nsqd, clock=nsqd.clock, max_attempts=0) as consumer:
        fill(nsqd, b"1", b"2")
        first = take(consumer)
        nsqd.clock.advance(60)
        until(lambda: first.is_answered)
        messages = [take(consumer), take(consumer)]
        # The one that waited was touched meanwhile.
        assert {message.body: message.attempts for message in messages} == {b"1": 2, b"2": 1}
        first.finish()  # too late; this is no error


# ---- handlers -------------------------------------------------------------------------------------------------------


def test_a_handler_is_called_in_the_calling_thread(consumer, nsqd):
    fill(nsqd, *numbers(250))
    threads = []

    def handle(message: BlockingMessage) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 250:
            consumer.stop()

    consumer.run(handle)
    assert set(threads) == {threading.current_thread()}
    until(lambda: left(nsqd) == 0)


def test_failed_message_is_requeued_and_counts_for_backoff(nsqd, caplog):
    with make(nsqd, default_requeue_delay=0.0, backoff_multiplier=0.001) as consumer:
        fill(nsqd, b"1")
        attempts = []

        def handle(message: BlockingMessage) -> None:
            attempts.append(message.attempts)
            if message.attempts < 3:
                raise ValueError("not yet")
            consumer.stop()

        consumer.run(handle)
        assert attempts == [1, 2, 3]
        until(lambda: consumer.stats().finished == 1)
        assert consumer.stats().requeued == 2
        assert consumer.backoff.state is not BackoffState.RUNNING or consumer.backoff.counter == 0
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError] * 2


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["here", "in threads"])
@pytest.mark.parametrize("place", ["handler", "giving_up"])
def test_exit_requeues_the_message_and_does_not_end_other_clients(nsqd, place, options):
    max_attempts = 5 if place == "handler" else 1
    with make(nsqd, max_attempts=max_attempts) as consumer, BlockingProducer(nsqd.tcp_address) as producer:

        def handle(message: BlockingMessage) -> None:
            if message.attempts > 1:
                consumer.stop()
            elif place == "handler":
                raise SystemExit(3)
            else:
                raise ValueError("no")

        def give_up(message: BlockingMessage) -> None:
            raise SystemExit(3)

        fill(nsqd, b"1")
        with pytest.raises(SystemExit, match="3"):
            consumer.run(handle, giving_up=give_up, **options)
        until(lambda: consumer.stats().requeued == 1)
        producer.publish("other", b"2")
        if place == "handler":
            consumer.run(handle, **options)
    assert left(nsqd) == (place == "giving_up")


def test_message_answered_by_handler_is_left_alone(consumer, nsqd):
    fill(nsqd, b"1", b"2", b"3")
    seen = []

    def handle(message: BlockingMessage) -> None:
        seen.append(message.body)
        match message.body:
            case b"1":
                message.finish()
                raise ValueError("after it was finished")
            case b"2":
                message.requeue(60.0, backoff=False)
        if len(seen) == 3:
            consumer.stop()

    consumer.run(handle)
    until(lambda: consumer.stats().finished == 2)
    assert consumer.stats().requeued == 1


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["here", "in threads"])
def test_message_is_given_up_after_max_attempts(nsqd, options):
    with make(nsqd, max_attempts=1, default_requeue_delay=0.0, max_backoff_duration=0.0) as consumer:
        fill(nsqd, b"1")
        given_up = []

        def handle(message: BlockingMessage) -> None:
            raise ValueError("never")

        def give_up(message: BlockingMessage) -> None:
            given_up.append((message.body, threading.current_thread() is portal_provider().thread))
            consumer.stop()

        consumer.run(handle, giving_up=give_up, **options)
        assert given_up == [(b"1", False)]
        until(lambda: consumer.stats().given_up == 1)


def test_several_threads_handle_concurrently(consumer, nsqd):
    fill(nsqd, *numbers(8))
    together = threading.Barrier(4)
    count = 0

    def handle(message: BlockingMessage) -> None:
        nonlocal count
        together.wait(WAIT_LIMIT)
        count += 1
        if count == 8:
            consumer.stop()

    consumer.run(handle, concurrency=4)
    until(lambda: left(nsqd) == 0)


def test_invalid_handlers_are_refused(consumer):
    async def handle(message: BlockingMessage) -> None:
        pass

    with pytest.raises(OptionError, match="async"):
        consumer.run(handle)
    with pytest.raises(OptionError, match="async"):
        consumer.run(print, giving_up=handle)
    with pytest.raises(OptionError, match="concurrency"):
        consumer.run(print, concurrency=0)
    with pytest.raises(OptionError, match="cancel_at_timeout"):
        consumer.run(print, cancel_at_timeout=True)


# ---- while it runs --------------------------------------------------------------------------------------------------


def test_state_can_be_read_and_changed(consumer, nsqd):
    consumer.wait_connected()
    assert consumer.unconnected == {}
    assert not consumer.is_starved
    assert consumer.backoff.counter == 0
    consumer.pause()
    assert consumer.stats().paused
    consumer.resume()
    consumer.change_max_in_flight(7)
    assert consumer.stats().max_in_flight == 7
    with unused_address() as address, unused_address() as lookupd:
        consumer.connect_to_nsqd(address)
        assert list(consumer.unconnected) == [address]
        consumer.disconnect_from_nsqd(address)
        consumer.connect_to_lookupd(lookupd)
        consumer.disconnect_from_lookupd(lookupd)
    with pytest.raises(OptionError):
        consumer.change_max_in_flight(-1)


def test_invalid_options_are_refused_by_constructor():
    with pytest.raises(OptionError, match="max_in_flight"):
        BlockingConsumer("t", "c", nsqd_tcp_addresses=["127.0.0.1:4150"], max_in_flight=-1)
    with pytest.raises(OptionError, match="lookupd_http_addresses"):
        BlockingConsumer("t", "c")


def test_consumer_finds_nsqds_by_nsqlookupds():
    with (
        unused_address() as lookupd,
        BlockingConsumer("t", "c", lookupd_http_addresses=[lookupd]) as consumer,
    ):
        with pytest.raises(NotConnected, match=rf"no connection to http://{lookupd} within 0.01 seconds"):
            consumer.wait_connected(timedelta(milliseconds=10))
        assert consumer.receive(timedelta(0)) is None


# ---- the end --------------------------------------------------------------------------------------------------------


def test_leaving_requeues_taken_messages_and_keeps_finished_ones(nsqd):
    fill_first = make(nsqd)
    with fill_first as consumer:
        fill(nsqd, *numbers(10))
        for _ in range(3):
            take(consumer).finish()
        begun = take(consumer)
    until(lambda: left(nsqd) == 7)
    assert waiting(nsqd) == 7
    assert begun.is_answered
    for answer in (begun.finish, begun.requeue, begun.touch):
        answer()  # this does nothing, since nsqd has the message again


def test_stop_requeues_messages_that_are_not_begun(consumer, nsqd):
    fill(nsqd, *numbers(10))
    message = take(consumer)
    until(lambda: consumer.stats().received == 10)
    consumer.stop()
    until(lambda: waiting(nsqd) == 9)
    message.finish()
    assert consumer.receive() is None
    assert list(consumer) == list(consumer.batches()) == []
    consumer.run(print)
    until(lambda: left(nsqd) == 9)


@pytest.mark.parametrize("closes", [BlockingConsumer.close, BlockingConsumer.stop])
def test_waiting_threads_return_at_stop(nsqd, closes):
    with make(nsqd) as consumer:
        consumer.wait_connected()
        idle = [
            start(list, consumer),
            start(list, consumer.batches()),
            start(consumer.receive),
            start(consumer.receive_batch, 10, 1.0),
            start(consumer.run, print),
            start(lambda: consumer.run(print, concurrency=2)),
        ]
        until(lambda: len(consumer._entered()._waiting) == 4)
        closes(consumer)
        wait(idle, WAIT_LIMIT)
        assert [future.result(0) for future in idle] == [[], [], None, [], None, None]


def test_consumer_can_be_opened_again_after_close(nsqd):
    consumer = make(nsqd)
    for _ in range(2):
        for use in (consumer.receive, consumer.batches, consumer.stop):
            with pytest.raises(Closed):
                use()
        with pytest.raises(Closed):
            next(iter(consumer))
        with pytest.raises(Closed):
            consumer.run(print)
        with consumer:
            fill(nsqd, b"1")
            take(consumer).finish()
    until(lambda: left(nsqd) == 0)


@pytest.mark.parametrize(
    "receive",
    [
        lambda consumer: consumer.receive(),
        lambda consumer: consumer.receive_batch(10, 1.0),
        lambda consumer: consumer.run(print),
        lambda consumer: consumer.run(print, concurrency=2),
    ],
    ids=["receive", "gather", "run", "run in threads"],
)
def test_ctrl_c_ends_a_wait_and_leaves_nothing_running(nsqd, receive):
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), make(nsqd, close_timeout=3600.0) as consumer:
        consumer.wait_connected()
        with interrupted_once(lambda: consumer.stats().connections):
            receive(consumer)
    until(lambda: threading.active_count() <= before)
    fill(nsqd, b"1")
    assert waiting(nsqd) == 1


def test_ctrl_c_in_a_handler_requeues_its_message(nsqd):
    with make(nsqd) as consumer:
        fill(nsqd, *numbers(5))

        def handle(message: BlockingMessage) -> None:
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            consumer.run(handle)
        until(lambda: consumer.stats().requeued == 1)
    assert waiting(nsqd) == 5


def test_handlers_in_threads_get_the_messages_that_another_receiver_has_left(consumer, nsqd):
    fill(nsqd, b"1", b"2")
    until(lambda: consumer.stats().waiting == 2)
    for message in consumer:
        assert consumer.stats().waiting == 1
        message.finish()
        break
    handled: list[bytes] = []
    running = start(lambda: consumer.run(lambda message: handled.append(message.body), concurrency=2))
    until(lambda: handled == [b"2"])
    consumer.stop()
    running.result(WAIT_LIMIT)


def test_handlers_in_threads_get_the_messages_that_come_with_one_for_another_thread(consumer, nsqd):
    may_return = threading.Event()
    begun: list[bytes] = []

    def handle(message: Message) -> None:
        begun.append(message.body)
        may_return.wait()

    running = start(lambda: consumer.run(handle, concurrency=2))
    fill(nsqd, b"1", b"2")
    until(lambda: len(begun) == 2)
    fill(nsqd, b"3", b"4")
    until(lambda: consumer.stats().waiting == 2)
    take(consumer).finish()  # no handler is free
    may_return.set()
    until(lambda: left(nsqd) == 0)
    consumer.stop()
    running.result(WAIT_LIMIT)


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"in_threads": True}, {"auto_touch": True}], ids=repr)
def test_after_ctrl_c_handlers_in_threads_complete_and_their_messages_are_finished(nsqd, options):
    consumer: BlockingConsumer
    may_end, begun = threading.Event(), threading.Event()

    def handle(message: BlockingMessage) -> None:
        begun.set()
        assert may_end.wait(WAIT_LIMIT)

    def end_once_it_is_closing(consumer: BlockingConsumer) -> None:
        until(lambda: consumer._loop_client is not None and consumer._loop_client._is_ending)
        may_end.set()

    with pytest.raises(KeyboardInterrupt), make(nsqd) as consumer:
        fill(nsqd, b"1")
        ending = start(end_once_it_is_closing, consumer)
        with interrupted_once(begun.is_set):
            consumer.run(handle, **options)
    ending.result(WAIT_LIMIT)
    assert left(nsqd) == 0
    assert (consumer.stats().finished, consumer.stats().requeued) == (1, 0)


def test_second_ctrl_c_requeues_at_once(nsqd):
    may_end, begun = threading.Event(), threading.Event()

    def handle(message: BlockingMessage) -> None:
        begun.set()
        may_end.wait()

    consumer = make(nsqd, close_timeout=3600.0).open()
    fill(nsqd, b"1")
    with pytest.raises(KeyboardInterrupt), interrupted_once(begun.is_set):
        consumer.run(handle, concurrency=2)
    with (
        pytest.raises(KeyboardInterrupt),
        interrupted_once(lambda: consumer._loop_client is not None and consumer._loop_client._is_ending),
    ):
        consumer.close()
    assert waiting(nsqd) == 1
    may_end.set()


def test_a_handler_in_another_thread_completes_while_it_is_closed(nsqd):
    consumer: BlockingConsumer
    may_end, begun = threading.Event(), threading.Event()

    def handle(message: BlockingMessage) -> None:
        begun.set()
        assert may_end.wait(WAIT_LIMIT)

    def end_once_it_is_closing(consumer: BlockingConsumer) -> None:
        until(lambda: consumer._loop_client is None or consumer._loop_client._is_ending)
        may_end.set()

    with make(nsqd) as consumer:
        fill(nsqd, b"1")
        running = start(consumer.run, handle)
        assert begun.wait(WAIT_LIMIT)
        ending = start(end_once_it_is_closing, consumer)
    running.result(WAIT_LIMIT)
    ending.result(WAIT_LIMIT)
    assert left(nsqd) == 0


def test_hanging_handler_delays_close_by_close_timeout(nsqd):
    may_end, begun = threading.Event(), threading.Event()

    def handle(message: BlockingMessage) -> None:
        begun.set()
        assert may_end.wait(WAIT_LIMIT)

    with make(nsqd, close_timeout=0.1) as consumer:
        fill(nsqd, b"1")
        running = start(consumer.run, handle)
        assert begun.wait(WAIT_LIMIT)
    until(lambda: waiting(nsqd) == 1)
    may_end.set()
    running.result(WAIT_LIMIT)


def test_signal_stops_the_consumer(nsqd):
    before = signal.getsignal(signal.SIGTERM)
    with make(nsqd, stop_signals=[signal.SIGTERM]) as consumer:
        fill(nsqd, b"1", b"2")
        handled = []

        def handle(message: BlockingMessage) -> None:
            handled.append(message.body)
            signal.raise_signal(signal.SIGTERM)
            until(lambda: waiting(nsqd) == 1)

        consumer.run(handle)
    assert (len(handled), left(nsqd), consumer.stats().finished) == (1, 1, 1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_interrupts_a_handler_that_hangs(nsqd):
    with (
        pytest.raises(SystemExit),
        make(nsqd, stop_signals=[signal.SIGTERM], close_timeout=3600.0) as consumer,
    ):
        fill(nsqd, b"1")

        def handle(message: BlockingMessage) -> None:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

        consumer.run(handle)
    assert waiting(nsqd) == 1


def test_stats_can_be_read_after_close(nsqd):
    consumer = make(nsqd)
    with pytest.raises(Closed):
        consumer.stats()
    with consumer:
        fill(nsqd, b"1")
        take(consumer).finish()
    assert (consumer.stats().finished, consumer.stats().in_flight) == (1, 0)
    assert consumer.backoff.state is BackoffState.RUNNING
    assert consumer.is_starved is False


@pytest.mark.parametrize("handler", [None, "handler"])
def test_handler_that_is_not_callable_is_refused(consumer, handler):
    with pytest.raises(OptionError, match=r"handler is .*; allowed is a function of a message"):
        consumer.run(handler)


def test_a_result_that_cannot_be_awaited_is_a_failure(nsqd, caplog):
    with make(nsqd, default_requeue_delay=60.0) as consumer:
        fill(nsqd, b"1")

        async def handle(message: BlockingMessage) -> None: ...

        def fail(message: BlockingMessage) -> object:
            consumer.stop()
            return handle(message)

        consumer.run(fail)
    assert (left(nsqd), consumer.stats().finished, consumer.stats().requeued) == (1, 0, 1)
    assert "handler returned 'coroutine', which cannot be awaited here" in caplog.text


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["here", "in threads"])
@pytest.mark.parametrize("envelope", [False, True])
def test_a_dead_letter_is_acknowledged_before_the_message_is_finished(nsqd, options, envelope):
    def fail(message: BlockingMessage) -> None:
        raise ValueError("no")

    with BlockingProducer(nsqd.tcp_address) as producer, make(nsqd, max_attempts=1) as consumer:
        fill(nsqd, b"1")
        running = start(
            partial(consumer.run, fail, giving_up=DeadLetter(producer, "dead", envelope=envelope), **options)
        )
        until(lambda: consumer.stats().given_up == 1)
        consumer.stop()
        running.result(WAIT_LIMIT)
    assert left(nsqd) == 0
    with BlockingConsumer("dead", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as dead:
        message = take(dead)
        message.finish()
        if envelope:
            given_up = GivenUp.decode(message.body)
            assert (given_up.body, given_up.error_text, given_up.attempts, given_up.topic) == (
                b"1",
                "no",
                1,
                "t",
            )
        else:
            assert message.body == b"1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_clients_are_closed_when_the_event_loop_ends_by_an_error(nsqd, monkeypatch):
    def leave() -> None:
        raise SystemExit(3)

    provider = PortalProvider()
    monkeypatch.setattr("nsqkit.loop_thread.loop_client.portal_provider", lambda: provider)
    with make(nsqd) as consumer, BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("other", b"1")
        thread, loop_client = provider.thread, consumer._opened()
        waiting = [
            start(consumer.receive),
            start(consumer.receive_batch, 10, 60.0),
            start(partial(consumer.run, print)),
            start(partial(consumer.run, print, concurrency=2)),
        ]
        until(lambda: len(consumer._entered()._waiting) == loop_client._task_count - 1 == 2)
        loop_client.put(leave)
        assert thread is not None
        thread.join(WAIT_LIMIT)
        ends = [each.exception(WAIT_LIMIT) for each in waiting]
        assert [type(end) for end in ends] == [type(None)] * 3 + [Closed]
        for use in (consumer.receive, partial(consumer.run, print), partial(producer.publish, "other", b"2")):
            with pytest.raises(Closed):
                use()
    assert provider.user_count == 0
    assert consumer.stats().in_flight == 0


def test_a_dead_letter_of_an_event_loop_is_refused(consumer):
    with pytest.raises(OptionError, match="allowed in a BlockingConsumer is one with a BlockingProducer"):
        consumer.run(print, giving_up=DeadLetter(Producer("127.0.0.1:4150"), "dead"))


def test_consumer_in_another_process_is_closed_until_opened_there(nsqd, monkeypatch):
    with make(nsqd) as consumer:
        fill(nsqd, b"1", b"2")
        message = take(consumer)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        for use in (consumer.receive, consumer.stats, consumer.stop, message.finish, message.requeue):
            with pytest.raises(Closed, match="another process"):
                use()
        monkeypatch.undo()
        take(consumer).finish()
    until(lambda: left(nsqd) == 1)
