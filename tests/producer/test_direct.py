from __future__ import annotations

import os
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
from nsqkit.errors import Closed, ConnectionLost, NSQError, OptionError
from nsqkit.producer import direct
from nsqkit.testing.servers import NsqdServer
from tests.certificates import HOST, write_files
from tests.producer.played_nsqd import HEARTBEAT, OK, PlayedNsqd
from tests.threads import WAIT_LIMIT, interrupted_once, start, until

SOURCE = str(Path(nsqkit.__file__).parent)


def alone(producer: BlockingProducer, count: int = direct.ALONE_MIN + 4) -> None:
    """Publish as one who gets a loan."""
    for _ in range(count):
        producer.publish("t", b"1")


def waiting(producer: BlockingProducer, played: PlayedNsqd) -> Future[None]:
    """Have a thread publish, and wait for an answer that the nsqd, which has read it, keeps back."""
    played.answers.clear()
    publishing = start(producer.publish, "t", b"2")
    played.wait_received(b"PUB t\n\0\0\0\1" + b"2")
    return publishing


def has_loan(producer: BlockingProducer) -> bool:
    assert producer._direct is not None
    return producer._direct._loan is not None


def is_lent(producer: BlockingProducer) -> bool:
    assert producer._loop_client is not None
    return producer._loop_client._loan is not None


def depth(nsqd: NsqdServer) -> int:
    return nsqd.inspect(lambda broker: broker.topics[b"t"].message_count)


@pytest.fixture
def played():
    with PlayedNsqd() as played:
        yield played


@pytest.fixture
def producer(played):
    """One that talks to the nsqd itself, which the test plays."""
    with BlockingProducer(played.address, reconnect_delay_min=0.01) as producer:
        alone(producer)
        assert has_loan(producer)
        yield producer


# ---- who gets the connection, and for how long ----------------------------------------------------------------------


def test_who_publishes_alone_gets_the_connection_and_all_arrives(nsqd):
    with BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer, direct.ALONE_MIN)
        assert not has_loan(producer)
        alone(producer, 1)
        assert has_loan(producer)
        producer.multi_publish("t", [b"1"] * 3)
        producer.deferred_publish("t", b"1", 0.1)
        alone(producer, 100)
        assert has_loan(producer)
        assert is_lent(producer)
        count = direct.ALONE_MIN + 1 + 4 + 100
        assert depth(nsqd) == count
        assert producer.stats().message_count == count
        assert not is_lent(producer)
        alone(producer)
        assert has_loan(producer)
    assert depth(nsqd) == count + direct.ALONE_MIN + 4


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
def test_whoever_wants_more_gets_none(nsqd, options):
    with BlockingProducer(nsqd.tcp_address, **options) as producer:
        alone(producer)
        assert not has_loan(producer)
        assert not is_lent(producer)


def test_nobody_gets_one_of_several(nsqd):
    with BlockingProducer(nsqd.tcp_address, nsqd.tcp_address.replace("127.0.0.1", "localhost")) as producer:
        alone(producer)
        assert not has_loan(producer)


def test_a_serializer_stays_in_the_event_loop_thread(nsqd):
    with BlockingProducer(nsqd.tcp_address, serializer=JSON) as producer:
        for _ in range(2 * direct.ALONE_MIN):
            producer.publish("t", 1)
        assert not is_lent(producer)


def test_after_a_refusal_it_is_asked_for_less_often(nsqd, monkeypatch):
    monkeypatch.setattr(direct, "REFUSED_PAUSE", 40)
    with BlockingProducer(nsqd.tcp_address, max_outstanding_bytes=1000) as producer:
        asked: list[None] = []
        assert producer._loop_client is not None
        monkeypatch.setattr(producer._loop_client, "borrow", lambda lend: asked.append(None))
        alone(producer, direct.ALONE_MIN + 1)
        alone(producer, 40 + direct.ALONE_MIN)
        assert len(asked) == 1
        alone(producer, 1)
        assert len(asked) == 2


def test_many_threads_share_it_or_give_it_back(nsqd):
    with BlockingProducer(nsqd.tcp_address) as producer, ThreadPoolExecutor(4) as threads:
        alone(producer)
        for each in [threads.submit(alone, producer, 200) for _ in range(4)]:
            each.result(WAIT_LIMIT)
        alone(producer)
        assert producer.stats().message_count == depth(nsqd) == 800 + 2 * (direct.ALONE_MIN + 4)


def test_what_nobody_uses_goes_back(producer, played):
    until(lambda: not is_lent(producer))
    played.connection.sendall(HEARTBEAT)
    played.wait_received(b"NOP\n")
    alone(producer)
    assert has_loan(producer)


def test_a_heartbeat_is_answered_meanwhile(producer, played):
    publishing = waiting(producer, played)
    played.connection.sendall(HEARTBEAT + OK)
    publishing.result(WAIT_LIMIT)
    played.wait_received(b"NOP\n")


@pytest.mark.parametrize("compression", [{}, {"deflate": True}])
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_it_speaks_through_layers(tmp_path, compression, is_secured):
    files = write_files(tmp_path)
    flags: dict[str, Any] = {}
    options: dict[str, Any] = {**compression}
    if is_secured:
        flags |= {"tls_cert": files.certificate, "tls_key": files.key, "https_address": ""}
        options |= {"tls_v1": True, "tls_root_ca_file": files.authority, "tls_server_name": HOST}
    with NsqdServer(**flags) as nsqd, BlockingProducer(nsqd.tcp_address, **options) as producer:
        alone(producer, 100)
        assert has_loan(producer)
        producer.ping()
        alone(producer, 100)
        assert depth(nsqd) == 200


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_refused_and_loses_nothing(producer):
    with pytest.raises(OptionError, match="topic"):
        producer.publish("no topic", b"1")
    with pytest.raises(OptionError, match="body"):
        producer.publish("t", b"")
    assert has_loan(producer)
    alone(producer, 1)


def test_a_broker_that_refuses_is_heard():
    with NsqdServer(max_msg_size=100) as nsqd, BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer)
        with pytest.raises(NSQError, match="too big"):
            producer.publish("t", b"x" * 101)
        alone(producer)
        assert has_loan(producer)
        assert producer.stats().nsqds[0].refused_count == 1


def test_more_than_the_kernel_takes_is_sent_too(nsqd):
    bodies = [bytes(900_000)] * 5
    with BlockingProducer(nsqd.tcp_address) as producer:
        alone(producer)
        for _ in range(5):
            producer.multi_publish("t", bodies)
        assert has_loan(producer)
    assert depth(nsqd) == direct.ALONE_MIN + 4 + 25


def test_what_a_broker_does_not_read_is_sent_later(producer, played):
    played.reads.clear()
    alone(producer, 1)
    publishing = start(producer.multi_publish, "t", [bytes(1_000_000)] * 4)
    until(lambda: not is_lent(producer))
    played.reads.set()
    publishing.result(WAIT_LIMIT)
    alone(producer)
    assert has_loan(producer)


def test_nobody_waits_for_a_thread_whose_broker_is_silent(producer, played, monkeypatch):
    monkeypatch.setattr("nsqkit.transport.loan.PATIENCE_MS", 3_600_000)
    publishing = waiting(producer, played)
    assert producer.stats().nsqds[0].outstanding_count == 1
    assert not is_lent(producer)
    also = producer.publish_nowait("t", b"3")
    played.wait_received(b"PUB t\n\0\0\0\1" + b"3")
    played.connection.sendall(OK + OK)
    assert (publishing.result(WAIT_LIMIT), also.result(WAIT_LIMIT)) == (None, None)


def test_the_event_loop_goes_on_with_what_takes_long(producer, played):
    played.answers.clear()
    publishing = start(producer.publish, "t", b"2")
    until(lambda: not is_lent(producer))
    played.connection.sendall(OK)
    publishing.result(WAIT_LIMIT)


def test_a_connection_that_is_lost_is_made_again(producer, played):
    publishing = waiting(producer, played)
    played.answers.set()
    played.cut()
    with pytest.raises(ConnectionLost):
        publishing.result(WAIT_LIMIT)
    alone(producer)
    assert has_loan(producer)


def test_a_connection_that_was_lost_before_is_noticed(producer, played):
    played.cut()
    try:
        producer.publish("t", b"2")
    except ConnectionLost:
        pass
    alone(producer)
    assert has_loan(producer)


def test_closing_answers_who_waits_there(producer, played):
    publishing = waiting(producer, played)
    closing = start(producer.close)
    until(lambda: not is_lent(producer) if producer._loop_client else True)
    played.connection.sendall(OK)
    assert publishing.result(WAIT_LIMIT) is None
    closing.result(WAIT_LIMIT)


def test_whoever_comes_after_the_end_is_told(nsqd):
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


def test_in_another_process_it_is_not_used(producer, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Closed, match="another process"):
        producer.publish("t", b"1")
    monkeypatch.undo()
    alone(producer, 1)


# ---- interrupted ----------------------------------------------------------------------------------------------------


def test_ctrl_c_while_it_waits_ends_the_connection_and_nothing_else(producer, played, monkeypatch):
    monkeypatch.setattr("nsqkit.transport.loan.PATIENCE_MS", 3_600_000)
    played.answers.clear()
    first = played.connection
    with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: b"12" in played.received):
        producer.publish("t", b"12")
    played.answers.set()
    alone(producer)
    assert has_loan(producer)
    assert played.connection is not first


class InterruptedAt:
    """Interrupts this thread at the nth place in nsqkit that it comes to where Python looks for signals.

    Those are the beginnings of functions and the ends of calls of built-in ones.

    Attributes:
        was_felt: whether it came to so many.
    """

    def __init__(self, n: int) -> None:
        self._places_left = n
        self.was_felt = False

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCE):
            self._places_left -= 1
            if not self._places_left:
                self.was_felt = True
                sys.setprofile(None)
                raise KeyboardInterrupt

    def __enter__(self) -> InterruptedAt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> bool:
        sys.setprofile(None)
        return exc_type is KeyboardInterrupt


def interrupted_everywhere(
    producer: BlockingProducer, prepare: Callable[[BlockingProducer], object]
) -> Iterator[bool]:
    """Interrupt a publish at each place in turn, and have another thread publish; tell whether it was felt."""
    n = 0
    was_felt = True
    while was_felt:
        n += 1
        prepare(producer)
        with InterruptedAt(n) as interrupted:
            producer.publish("t", b"x")
        was_felt = interrupted.was_felt
        start(producer.publish, "t", b"1").result(WAIT_LIMIT)
        assert producer.stats().nsqds[0].outstanding_count == 0
        yield was_felt
    assert n > 50


def eager(nsqd: NsqdServer) -> BlockingProducer:
    """Return a producer that is soon back after each interruption."""
    return BlockingProducer(nsqd.tcp_address, reconnect_delay_min=0.001, reconnect_delay_max=0.001)


def test_wherever_it_is_interrupted_others_and_later_ones_publish(nsqd):
    depths = []

    def lend(producer: BlockingProducer) -> None:
        until(lambda: _published_alone(producer))
        depths.append(depth(nsqd))

    with eager(nsqd) as producer:
        for was_felt in interrupted_everywhere(producer, lend):
            assert depth(nsqd) - depths[-1] in ((1, 2) if was_felt else (2,))


def _published_alone(producer: BlockingProducer) -> bool:
    alone(producer)
    return has_loan(producer)


def test_wherever_it_is_interrupted_as_it_borrows_others_and_later_ones_publish(nsqd):
    def lend_nothing(producer: BlockingProducer) -> None:
        producer.stats()
        producer._direct = direct.Direct(producer._opened())
        alone(producer, direct.ALONE_MIN)

    with eager(nsqd) as producer:
        assert not list(interrupted_everywhere(producer, lend_nothing))[-1]
