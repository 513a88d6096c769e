"""Tests of leases: by themselves, with a socket pair; through the façade; and interrupted anywhere."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nsqkit
from nsqkit import BlockingProducer
from nsqkit.client.serializers import JSON
from nsqkit.clock import NS_PER_S, ManualClock
from nsqkit.errors import BadTopic, Closed, ConnectionLost, NSQError, OptionError
from nsqkit.producer import thread_lease
from nsqkit.producer.pool_connection import PoolConnection, Receipt
from nsqkit.producer.thread_lease import ThreadLease, ThreadPublisher
from nsqkit.testing.servers import NsqdServer
from nsqkit.wire.frames import encode_error
from tests.certificates import HOST, write_files
from tests.producer.fakes import connected
from tests.producer.played_nsqd import HEARTBEAT, OK, PlayedNsqd
from tests.threads import WAIT_LIMIT, interrupted_once, start, until

SOURCE = str(Path(nsqkit.__file__).parent)


@pytest.fixture(autouse=True)
def _long_lease(monkeypatch):
    """Let no lease end by time: on a busy machine, a thread may not run for longer than that."""
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 3_600_000)
    monkeypatch.setattr(thread_lease, "UNUSED_NS", 3600 * NS_PER_S)


# ---- a lease by itself ----------------------------------------------------------------------------------------------


class Leased:
    """A lease of a session, with the other end of its socket, and the calls that it has made."""

    address = "nsqd:4150"

    def __init__(self) -> None:
        self.session = connected()
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(WAIT_LIMIT)
        ours.setblocking(False)
        self.wake_count = 0
        self.attached: list[bytes] = []
        self.aborted: list[NSQError] = []
        self.lease = ThreadLease(
            PoolConnection(self, None, ManualClock()),  # type: ignore[arg-type]
            self.session,
            ours.fileno(),
            ManualClock(),
            self.wake,
        )
        ours.close()

    def wake(self) -> None:
        self.wake_count += 1

    def attach(self, unsent: bytes) -> None:
        self.attached.append(unsent)

    def abort(self, error: NSQError) -> None:
        self.aborted.append(error)

    def publish(self, command: bytes = b"PUB") -> Receipt:
        receipt = Receipt(1, 0)
        self.session.publish(command, receipt)
        return receipt

    def use(self, publish: Callable[[], Receipt] | None = None) -> Receipt | None:
        return self.lease.use(publish or self.publish)

    def use_in_thread(self) -> Future[Receipt]:
        """Publish in a thread, up to where it waits for the answer."""
        using = start(self.use)
        assert self.peer.recv(100) == b"PUB"
        return using


@pytest.fixture
def leased():
    leased = Leased()
    yield leased
    if not leased.lease.is_ended:
        until(leased.lease.end)
    leased.peer.close()


def test_a_thread_publishes_and_gets_the_answer(leased):
    for n in range(3):
        leased.peer.send(OK)
        receipt = leased.use()
        assert (receipt.is_answered, receipt.error) == (True, None)
        assert leased.peer.recv(100) == b"PUB"
        assert leased.lease.use_count == n + 1
    assert not leased.wake_count
    assert leased.lease.end()
    assert (leased.attached, leased.aborted) == ([b""], [])
    assert leased.use() is None


def test_an_answer_in_pieces_and_a_heartbeat_between(leased):
    using = leased.use_in_thread()
    leased.peer.send(HEARTBEAT + OK[:3])
    assert leased.peer.recv(100) == b"NOP\n"
    leased.peer.send(OK[3:])
    assert using.result(WAIT_LIMIT).is_answered


@pytest.mark.parametrize("end", [encode_error(BadTopic("?")), b""], ids=["session", "stream"])
def test_the_event_loop_gets_a_connection_that_ends(leased, end):
    using = leased.use_in_thread()
    if end:
        leased.peer.send(end)
    else:
        leased.peer.shutdown(socket.SHUT_WR)
    assert using.result(WAIT_LIMIT).is_answered == bool(end)
    assert leased.wake_count == 1
    assert leased.use() is None
    assert leased.lease.end()


def test_the_event_loop_gets_a_socket_with_an_error(leased):
    leased.peer.close()
    assert not leased.use().is_answered
    assert leased.wake_count == 1


def test_the_event_loop_waits_for_an_answer_that_takes_long(leased, monkeypatch):
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 1)
    assert not leased.use().is_answered
    assert leased.wake_count == 1
    assert leased.lease.end()


def test_the_event_loop_gets_the_bytes_that_were_not_sent(leased, monkeypatch):
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 1)
    much = bytes(range(250)) * 16_000
    leased.use(lambda: leased.publish(much))
    assert leased.lease.end()
    (unsent,) = leased.attached
    assert 0 < len(unsent) < len(much)
    assert much.endswith(unsent)


def test_a_large_publish_is_sent_in_pieces(leased):
    much = bytes(range(250)) * 16_000
    using = start(leased.use, lambda: leased.publish(much))
    received = b""
    while len(received) < len(much):
        received += leased.peer.recv(1 << 20)
    assert received == much
    leased.peer.send(OK)
    using.result(WAIT_LIMIT)
    using = leased.use_in_thread()  # the socket is not polled for writing any more
    leased.peer.send(OK)
    assert using.result(WAIT_LIMIT).is_answered


def test_a_recall_ends_the_wait_of_the_thread(leased):
    using = leased.use_in_thread()
    is_ended = leased.lease.end()  # if the thread was quick
    assert not using.result(WAIT_LIMIT).is_answered
    assert leased.wake_count == 1
    assert is_ended or leased.lease.end()
    assert leased.attached == [b""]


def test_one_of_two_threads_uses_the_lease(leased):
    using = leased.use_in_thread()
    assert leased.use() is None
    leased.peer.send(OK)
    using.result(WAIT_LIMIT)


def test_a_refused_publish_leaves_the_lease_in_use(leased):
    def refuse() -> Receipt:
        raise NSQError("no")

    with pytest.raises(NSQError, match="no"):
        leased.use(refuse)
    leased.peer.send(OK)
    assert leased.use().is_answered


@pytest.mark.parametrize("error", [NSQError, KeyboardInterrupt])
def test_an_error_of_a_recalled_use_wakes_the_event_loop(leased, error):
    def publish() -> Receipt:
        assert not leased.lease.end()
        raise error

    with pytest.raises(error):
        leased.use(publish)
    assert leased.wake_count == 1
    assert leased.lease.end()


def test_an_interrupted_connection_is_aborted(leased):
    def interrupt() -> Receipt:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leased.use(interrupt)
    assert leased.use() is None
    assert leased.lease.end()
    assert leased.attached == []
    assert "interrupted" in str(leased.aborted[0])


class Lock:
    """A lock that calls a function between a thread's look at it and its taking it."""

    def __init__(self, lock: threading.Lock, before: Callable[[], object]) -> None:
        self._lock, self._before = lock, before

    def locked(self) -> bool:
        return False

    def acquire(self, *, blocking: bool) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._before()
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


def test_a_thread_that_comes_during_a_recall_wakes_the_event_loop(leased):
    lock = leased.lease._lock

    def recall_another() -> None:
        with lock:
            assert not leased.lease.end()

    leased.lease._lock = Lock(lock, recall_another)
    assert leased.use() is None
    assert leased.wake_count == 1
    assert leased.lease.end()


def test_a_thread_that_comes_at_the_end_gets_nothing(leased):
    leased.lease._lock = Lock(leased.lease._lock, leased.lease.end)
    assert leased.use() is None


# ---- through the façade ---------------------------------------------------------------------------------------------


def alone(producer: BlockingProducer, count: int = thread_lease.ALONE_COUNT_MIN + 4) -> None:
    """Publish as often as it takes to get a lease."""
    for _ in range(count):
        producer.publish("t", b"1")


def waiting(producer: BlockingProducer, played: PlayedNsqd) -> Future[None]:
    """Publish in a thread, and return when the nsqd has read it; the nsqd does not answer."""
    played.answers.clear()
    publishing = start(producer.publish, "t", b"2")
    played.wait_received(b"PUB t\n\0\0\0\1" + b"2")
    return publishing


def has_lease(producer: BlockingProducer) -> bool:
    assert producer._thread_publisher is not None
    return producer._thread_publisher._lease is not None


def is_leased(producer: BlockingProducer) -> bool:
    assert producer._loop_client is not None
    return producer._loop_client._lease is not None


def depth(nsqd: NsqdServer) -> int:
    return nsqd.inspect(lambda broker: broker.topics[b"t"].message_count)


@pytest.fixture
def played():
    with PlayedNsqd() as played:
        yield played


@pytest.fixture
def producer(played):
    """A producer with a lease, of a played nsqd."""
    with BlockingProducer(played.address, reconnect_delay_min=0.01) as producer:
        alone(producer)
        assert has_lease(producer)
        yield producer


def test_a_thread_that_publishes_alone_gets_a_lease_and_all_messages_arrive(nsqd):
    with BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer, thread_lease.ALONE_COUNT_MIN)
        assert not has_lease(producer)
        alone(producer, 1)
        assert has_lease(producer)
        producer.multi_publish("t", [b"1"] * 3)
        producer.deferred_publish("t", b"1", 0.1)
        alone(producer, 100)
        assert has_lease(producer)
        assert is_leased(producer)
        count = thread_lease.ALONE_COUNT_MIN + 1 + 4 + 100
        assert depth(nsqd) == count
        assert producer.stats().message_count == count
        assert not is_leased(producer)
        alone(producer)
        assert has_lease(producer)
    assert depth(nsqd) == count + thread_lease.ALONE_COUNT_MIN + 4


@pytest.mark.parametrize(
    "options",
    [
        {"linger": 0.001},
        {"max_outstanding_bytes": 1000},
        {"publish_timeout": WAIT_LIMIT},
        {"publish_attempts": 2},
        {"read_timeout": 1.0, "heartbeat_interval": 1.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_these_options_rule_out_a_lease(nsqd, options):
    with BlockingProducer(nsqd.tcp_address, **options) as producer:
        alone(producer)
        assert not has_lease(producer)
        assert not is_leased(producer)


def test_a_pool_of_several_nsqds_rules_out_a_lease(nsqd):
    with BlockingProducer(nsqd.tcp_address, nsqd.tcp_address.replace("127.0.0.1", "localhost")) as producer:
        alone(producer)
        assert not has_lease(producer)


def test_a_serializer_stays_in_the_event_loop_thread(nsqd):
    with BlockingProducer(nsqd.tcp_address, serializer=JSON) as producer:
        for _ in range(2 * thread_lease.ALONE_COUNT_MIN):
            producer.publish("t", 1)
        assert not is_leased(producer)


def test_after_a_refusal_a_lease_is_requested_less_often(nsqd, monkeypatch):
    monkeypatch.setattr(thread_lease, "REFUSED_PAUSE_COUNT", 40)
    with BlockingProducer(nsqd.tcp_address, max_outstanding_bytes=1000) as producer:
        asked: list[None] = []
        assert producer._loop_client is not None
        monkeypatch.setattr(producer._loop_client, "lease", lambda make: asked.append(None))
        alone(producer, thread_lease.ALONE_COUNT_MIN + 1)
        alone(producer, 40 + thread_lease.ALONE_COUNT_MIN)
        assert len(asked) == 1
        alone(producer, 1)
        assert len(asked) == 2


def test_many_threads_publish_with_and_without_leases(nsqd):
    with BlockingProducer(nsqd.tcp_address) as producer, ThreadPoolExecutor(4) as threads:
        alone(producer)
        for each in [threads.submit(alone, producer, 200) for _ in range(4)]:
            each.result(WAIT_LIMIT)
        alone(producer)
        assert producer.stats().message_count == depth(nsqd) == 800 + 2 * (thread_lease.ALONE_COUNT_MIN + 4)


def test_an_unused_lease_ends(played, monkeypatch):
    monkeypatch.setattr(thread_lease, "UNUSED_NS", 1)
    with BlockingProducer(played.address) as producer:
        alone(producer)
        until(lambda: not is_leased(producer))
        monkeypatch.setattr(thread_lease, "UNUSED_NS", 3600 * NS_PER_S)
        played.connection.sendall(HEARTBEAT)
        played.wait_received(b"NOP\n")
        alone(producer)
        assert has_lease(producer)


def test_a_heartbeat_is_answered_during_a_publish(producer, played):
    publishing = waiting(producer, played)
    played.connection.sendall(HEARTBEAT + OK)
    publishing.result(WAIT_LIMIT)
    played.wait_received(b"NOP\n")


@pytest.mark.parametrize("compression", [{}, {"deflate": True}])
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_a_lease_works_with_tls_and_compression(tmp_path, compression, is_secured):
    files = write_files(tmp_path)
    flags: dict[str, Any] = {}
    options: dict[str, Any] = {**compression}
    if is_secured:
        flags |= {"tls_cert": files.certificate, "tls_key": files.key, "https_address": ""}
        options |= {"tls_v1": True, "tls_root_ca_file": files.authority, "tls_server_name": HOST}
    with NsqdServer(**flags) as nsqd, BlockingProducer(nsqd.tcp_address, **options) as producer:
        alone(producer, 100)
        assert has_lease(producer)
        producer.ping()
        alone(producer, 100)
        assert depth(nsqd) == 200


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_and_the_lease_goes_on(producer):
    with pytest.raises(OptionError, match="topic"):
        producer.publish("no topic", b"1")
    with pytest.raises(OptionError, match="body"):
        producer.publish("t", b"")
    assert has_lease(producer)
    alone(producer, 1)


def test_a_refusal_of_the_broker_is_raised():
    with NsqdServer(max_msg_size=100) as nsqd, BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer)
        with pytest.raises(NSQError, match="too big"):
            producer.publish("t", b"x" * 101)
        alone(producer)
        assert has_lease(producer)
        assert producer.stats().nsqds[0].refused_count == 1


def test_more_bytes_than_the_kernel_takes_are_sent(nsqd):
    bodies = [bytes(900_000)] * 5
    with BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer)
        for _ in range(5):
            producer.multi_publish("t", bodies)
        assert has_lease(producer)
    assert depth(nsqd) == thread_lease.ALONE_COUNT_MIN + 4 + 25


def test_bytes_that_the_broker_does_not_read_are_sent_later(producer, played, monkeypatch):
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 1)
    played.reads.clear()
    publishing = start(producer.multi_publish, "t", [bytes(1_000_000)] * 5)
    until(lambda: not is_leased(producer))
    played.reads.set()
    until(lambda: len(played.received) > 5_000_000)
    publishing.result(WAIT_LIMIT)
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 3_600_000)
    alone(producer)
    assert has_lease(producer)


def test_other_calls_do_not_wait_for_a_thread_whose_broker_is_silent(producer, played):
    publishing = waiting(producer, played)
    assert producer.stats().nsqds[0].outstanding_count == 1
    assert not is_leased(producer)
    also = producer.publish_nowait("t", b"3")
    played.wait_received(b"PUB t\n\0\0\0\1" + b"3")
    played.connection.sendall(OK + OK)
    assert (publishing.result(WAIT_LIMIT), also.result(WAIT_LIMIT)) == (None, None)


def test_the_event_loop_goes_on_with_a_publish_that_takes_long(producer, played, monkeypatch):
    monkeypatch.setattr(thread_lease, "ANSWER_TIMEOUT_MS", 1)
    played.answers.clear()
    publishing = start(producer.publish, "t", b"2")
    until(lambda: not is_leased(producer))
    played.connection.sendall(OK)
    publishing.result(WAIT_LIMIT)


def test_a_connection_that_is_lost_during_a_publish_is_made_again(producer, played):
    publishing = waiting(producer, played)
    played.answers.set()
    played.cut()
    with pytest.raises(ConnectionLost):
        publishing.result(WAIT_LIMIT)
    alone(producer)
    assert has_lease(producer)


def test_a_connection_that_was_lost_before_a_publish_is_made_again(producer, played):
    played.cut()
    try:
        producer.publish("t", b"2")
    except ConnectionLost:
        pass
    alone(producer)
    assert has_lease(producer)


def test_close_waits_for_the_answer_of_a_thread(producer, played):
    publishing = waiting(producer, played)
    closing = start(producer.close)
    until(lambda: not is_leased(producer) if producer._loop_client else True)
    played.connection.sendall(OK)
    assert publishing.result(WAIT_LIMIT) is None
    closing.result(WAIT_LIMIT)


def test_a_publish_after_the_end_raises_closed(nsqd):
    producer = BlockingProducer(nsqd.tcp_address).open()
    alone(producer)
    going_on = threading.Event()

    def work() -> None:
        while True:
            producer.publish("t", b"1")
            going_on.set()

    working = start(work)
    assert going_on.wait(WAIT_LIMIT)
    producer.close()
    assert type(working.exception(WAIT_LIMIT)) is Closed


def test_a_lease_is_not_used_in_another_process(producer, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Closed, match="another process"):
        producer.publish("t", b"1")
    monkeypatch.undo()
    alone(producer, 1)


# ---- interrupted ----------------------------------------------------------------------------------------------------


def test_ctrl_c_during_a_wait_ends_only_the_connection(producer, played):
    played.answers.clear()
    first = played.connection
    with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: b"12" in played.received):
        producer.publish("t", b"12")
    played.answers.set()
    alone(producer)
    assert has_lease(producer)
    assert played.connection is not first


class InterruptedAt:
    """Interrupts this thread at the nth place in nsqkit where Python checks for signals.

    These are the beginnings of functions and the ends of calls of built-in ones.

    Attributes:
        was_raised: whether there were so many places.
    """

    def __init__(self, n: int) -> None:
        self._places_left = n
        self.was_raised = False

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCE):
            self._places_left -= 1
            if not self._places_left:
                self.was_raised = True
                sys.setprofile(None)
                raise KeyboardInterrupt

    def __enter__(self) -> InterruptedAt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> bool:
        sys.setprofile(None)
        return exc_type is KeyboardInterrupt


def interrupted_everywhere(producer: BlockingProducer, prepare: Callable[[BlockingProducer], object]) -> Iterator[bool]:
    """Interrupt a publish at each place in turn, publish in another thread, and yield whether it was interrupted."""
    n = 0
    was_raised = True
    while was_raised:
        n += 1
        prepare(producer)
        with InterruptedAt(n) as interrupted:
            producer.publish("t", b"x")
        was_raised = interrupted.was_raised
        start(producer.publish, "t", b"1").result(WAIT_LIMIT)
        assert producer.stats().nsqds[0].outstanding_count == 0
        yield was_raised
    assert n > 50


def reconnecting(nsqd: NsqdServer) -> BlockingProducer:
    """Return a producer that reconnects at once after each interruption."""
    return BlockingProducer(nsqd.tcp_address, reconnect_delay_min=0.001, reconnect_delay_max=0.001)


def test_after_an_interruption_anywhere_in_a_publish_other_threads_publish(nsqd):
    depths = []

    def lease(producer: BlockingProducer) -> None:
        until(lambda: _published_alone(producer))
        depths.append(depth(nsqd))

    with reconnecting(nsqd) as producer:
        for was_raised in interrupted_everywhere(producer, lease):
            assert depth(nsqd) - depths[-1] in ((1, 2) if was_raised else (2,))


def _published_alone(producer: BlockingProducer) -> bool:
    alone(producer)
    return has_lease(producer)


def test_after_an_interruption_anywhere_in_a_request_other_threads_publish(nsqd):
    def end_lease(producer: BlockingProducer) -> None:
        producer.stats()
        producer._thread_publisher = ThreadPublisher(producer._opened())
        alone(producer, thread_lease.ALONE_COUNT_MIN)

    with reconnecting(nsqd) as producer:
        assert not list(interrupted_everywhere(producer, end_lease))[-1]
