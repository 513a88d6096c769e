from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import NSQError
from nsqkit.transport import loan as loans
from nsqkit.transport.loan import Loan
from tests.threads import WAIT_LIMIT, start, until


class Question:
    """What the machine was told to ask."""

    is_answered = False


class Asker:
    """A machine that says what it is told to, and takes whatever comes for the answer to its only question."""

    def __init__(self) -> None:
        self.outbox = b""
        self.outbox_full = False
        self.ended = False
        self.received = b""
        self.left: list[bytes] = []
        self.answer_size = 1
        self.question = Question()

    @property
    def has_output(self) -> bool:
        return bool(self.outbox)

    @property
    def has_input(self) -> bool:
        return bool(self.left)

    def process_input(self, now_ns: int) -> None:
        piece = self.left.pop(0)
        self.receive_data(piece, now_ns)

    def receive_data(self, data: bytes, now_ns: int) -> None:
        if data == b"in pieces":
            self.left = [b"in", b"pieces"]
            return
        self.received += data
        if data == b"again":
            self.outbox = b"more"
        elif data == b"end":
            self.ended = True
        elif len(self.received) >= self.answer_size:
            self.question.is_answered = True

    def receive_eof(self, now_ns: int) -> None:
        raise AssertionError("that is for the event loop to see")

    has_events = False

    def events(self) -> tuple[()]:
        return ()

    def data_to_send(self, now_ns: int) -> bytes:
        data, self.outbox = self.outbox, b""
        return data

    def ask(self, words: bytes = b"what") -> Question:
        self.outbox += words
        return self.question


class Lent:
    """A machine on loan, with the other end of its socket, and what the loan has told."""

    def __init__(self) -> None:
        self.machine = Asker()
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(WAIT_LIMIT)
        ours.setblocking(False)
        self.left: list[Question] = []
        self.idle_count = 0
        self.back: list[Loan] = []
        self.loan = Loan(
            self.machine, ours.fileno(), ManualClock(), on_idle=self.count_idle, on_back=self.back.append
        )
        ours.close()

    def count_idle(self) -> None:
        self.idle_count += 1

    def use(self, ask: Callable[[], Question] | None = None) -> Question | None:
        return self.loan.use(ask or self.machine.ask, self.left.append)

    def close(self) -> None:
        until(self.loan.take_back)
        self.peer.close()


@pytest.fixture
def lent():
    with opened() as lent:
        yield lent


@contextmanager
def opened() -> Iterator[Lent]:
    lent = Lent()
    try:
        yield lent
    finally:
        if not lent.back:
            lent.close()
        lent.peer.close()


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(loans, "PATIENCE_MS", 3_600_000)


def test_a_thread_asks_and_hears(lent, patient):
    lent.peer.send(b"!")
    for n in range(3):
        assert lent.use() is lent.machine.question
        assert lent.machine.received == b"!" * (n + 1)
        assert lent.peer.recv(100) == b"what"
        lent.machine.question.is_answered = False
        lent.peer.send(b"!")
        assert lent.loan.use_count == n + 1
    assert not lent.left
    assert not lent.idle_count
    assert lent.loan.take_back()
    assert lent.back == [lent.loan]
    assert not lent.loan.is_broken
    assert lent.loan.unsent == b""
    assert lent.use() is None


def test_a_machine_that_works_in_turns_is_given_all_of_them(lent, patient):
    using = start(lent.use)
    lent.machine.answer_size = len(b"inpieces")
    assert lent.peer.recv(100) == b"what"
    lent.peer.send(b"in pieces")
    using.result(WAIT_LIMIT)
    assert lent.machine.received == b"inpieces"


def test_what_the_machine_says_meanwhile_is_sent(lent, patient):
    using = start(lent.use)
    assert lent.peer.recv(100) == b"what"
    lent.peer.send(b"again")
    assert lent.peer.recv(100) == b"more"
    lent.peer.send(b"!")
    using.result(WAIT_LIMIT)
    assert not lent.left


@pytest.mark.parametrize("answer", [b"end", b""], ids=["end of the machine", "end of the stream"])
def test_an_end_is_for_the_event_loop(lent, patient, answer):
    using = start(lent.use)
    lent.peer.recv(100)
    if answer:
        lent.peer.send(answer)
    else:
        lent.peer.shutdown(socket.SHUT_WR)
    question = using.result(WAIT_LIMIT)
    assert lent.left == [question]
    assert lent.idle_count == 1
    assert lent.use() is None
    assert lent.loan.take_back()


def test_a_socket_that_fails_is_for_the_event_loop(lent, patient):
    lent.peer.close()
    assert lent.use() is not None
    assert len(lent.left) == 1


def test_no_answer_for_a_while_is_for_the_event_loop(lent, monkeypatch):
    monkeypatch.setattr(loans, "PATIENCE_MS", 1)
    assert not lent.use().is_answered
    assert lent.left == [lent.machine.question]
    assert lent.loan.take_back()


def test_what_is_not_taken_is_left_unsent(lent, monkeypatch):
    monkeypatch.setattr(loans, "PATIENCE_MS", 1)
    much = bytes(range(250)) * 20_000
    lent.use(lambda: lent.machine.ask(much))
    assert lent.loan.take_back()
    taken = len(much) - len(lent.loan.unsent)
    assert 0 < taken < len(much)
    assert much.endswith(lent.loan.unsent)


def test_much_is_sent_in_pieces(lent, patient):
    much = bytes(range(250)) * 20_000
    using = start(lent.use, lambda: lent.machine.ask(much))
    received = b""
    while len(received) < len(much):
        received += lent.peer.recv(1 << 20)
    assert received == much
    lent.peer.send(b"!")
    using.result(WAIT_LIMIT)
    assert not lent.left
    lent.machine.question.is_answered = False
    using = start(lent.use)  # and no room is waited for any more
    lent.peer.recv(100)
    lent.peer.send(b"!")
    using.result(WAIT_LIMIT)


def test_the_event_loop_asks_and_does_not_wait(lent, patient):
    using = start(lent.use)
    lent.peer.recv(100)
    is_over = lent.loan.take_back()  # if the thread was quick
    assert using.result(WAIT_LIMIT) is lent.machine.question
    assert lent.left == [lent.machine.question]
    assert lent.idle_count == 1
    assert is_over or lent.loan.take_back()
    assert lent.back == [lent.loan]


def test_of_two_threads_one_has_it(lent, patient):
    using = start(lent.use)
    lent.peer.recv(100)
    assert lent.use() is None
    lent.peer.send(b"!")
    using.result(WAIT_LIMIT)


def test_what_is_wrong_is_not_asked(lent, patient):
    def refuse() -> Question:
        raise NSQError("no")

    with pytest.raises(NSQError, match="no"):
        lent.use(refuse)
    assert not lent.loan.is_broken
    lent.peer.send(b"!")
    assert lent.use() is not None


def test_after_an_interruption_nobody_has_it(lent, patient):
    def interrupt() -> Question:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lent.use(interrupt)
    assert lent.use() is None
    assert lent.loan.take_back()
    assert lent.loan.is_broken


@pytest.mark.parametrize("error", [NSQError, KeyboardInterrupt])
def test_however_a_use_ends_the_event_loop_is_told(lent, error):
    def ask() -> Question:
        assert not lent.loan.take_back()
        raise error

    with pytest.raises(error):
        lent.use(ask)
    assert lent.idle_count == 1
    assert lent.loan.take_back()


def test_a_thread_that_comes_as_it_is_asked_for_tells_the_event_loop(lent):
    """It has found the lock free, another thread had it meanwhile, and the event loop has asked that one."""
    lock: threading.Lock = lent.loan._lock

    class Late:
        def locked(self) -> bool:
            return False

        def acquire(self, *, blocking: bool) -> bool:
            return lock.acquire(blocking)

        def release(self) -> None:
            lock.release()

        def __enter__(self) -> None:
            with lock:
                assert not lent.loan.take_back()
            lock.acquire()
            assert not lent.loan.take_back()

        def __exit__(self, *exc_info: object) -> None:
            lock.release()

    lent.loan._lock = Late()
    assert lent.use() is None
    assert lent.idle_count == 1
    assert lent.loan.take_back()


def test_a_thread_that_comes_as_it_ends_gets_nothing(lent):
    """It has found the lock free, and then the event loop was first."""
    begun, may_go_on = threading.Event(), threading.Event()

    class Hesitating:
        def __init__(self, lock: threading.Lock) -> None:
            self._lock = lock

        def locked(self) -> bool:
            return False

        def acquire(self, *, blocking: bool) -> bool:
            return self._lock.acquire(blocking)

        def release(self) -> None:
            self._lock.release()

        def __enter__(self) -> None:
            begun.set()
            may_go_on.wait(WAIT_LIMIT)
            self._lock.acquire()

        def __exit__(self, *exc_info: object) -> None:
            self._lock.release()

    lent.loan._lock = Hesitating(lent.loan._lock)
    using = start(lent.use)
    begun.wait(WAIT_LIMIT)
    assert lent.loan.take_back()
    may_go_on.set()
    assert using.result(WAIT_LIMIT) is None
