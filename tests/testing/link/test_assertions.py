from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from nsqkit.errors import BadMessage, FinishFailed, OptionError, TouchFailed
from nsqkit.testing.link.assertions import LINES_MAX, JournalAssertions
from nsqkit.testing.link.journal import Journal
from nsqkit.wire.commands import BARRIER_ID, MAGIC_V2, NOP, encode_finish, encode_publish, encode_ready, encode_touch
from nsqkit.wire.frames import OK_FRAME, encode_error
from tests.testing.link.traffic import IDS, Conversation, whole_conversation


class Server(JournalAssertions):
    """The smallest object with assertions."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal


def refused(verb: type[FinishFailed | TouchFailed], word: str, number: int) -> bytes:
    return encode_error(verb(f"{word} {IDS[number].decode()} failed ID not in flight"))


@pytest.fixture
def server() -> Server:
    return Server(whole_conversation().journal)


TRUE: list[Callable[[Server], None]] = [
    lambda s: s.assert_published("orders"),
    lambda s: s.assert_published("orders", "one"),
    lambda s: s.assert_published("orders", b"three", times=1),
    lambda s: s.assert_published("orders", times=3),
    lambda s: s.assert_published("audit", times=0),
    lambda s: s.assert_not_published("audit"),
    lambda s: s.assert_not_published("orders", "four"),
    lambda s: s.assert_delivered("orders", "billing"),
    lambda s: s.assert_delivered("orders", "billing", "two", times=2),
    lambda s: s.assert_delivered("orders", "billing", "three", times=0),
    lambda s: s.assert_finished("one"),
    lambda s: s.assert_finished(times=2),
    lambda s: s.assert_finished(b"two", topic="orders", channel="billing"),
    lambda s: s.assert_not_finished("three"),
    lambda s: s.assert_not_finished(topic="audit"),
    lambda s: s.assert_requeued("two"),
    lambda s: s.assert_requeued("two", delay=1.5, times=1),
    lambda s: s.assert_requeued(delay=(1, 2)),
    lambda s: s.assert_requeued("two", delay=3, times=0),
    lambda s: s.assert_touched("two", times=1),
    lambda s: s.assert_touched("one", times=0),
    lambda s: s.assert_ready_at_most(1),
    lambda s: s.assert_ready_at_most(0, topic="audit"),
    lambda s: s.assert_answered_once(),
    lambda s: s.assert_nothing_lost("orders", "billing", kept=["three"]),
    lambda s: s.assert_nothing_lost("audit", "billing"),
    lambda s: s.assert_no_errors(),
]


@pytest.mark.parametrize("number", range(len(TRUE)))
def test_what_the_journal_has_is_asserted(server: Server, number: int) -> None:
    TRUE[number](server)


FALSE: list[tuple[Callable[[Server], None], str]] = [
    (
        lambda s: s.assert_published("orders", "four"),
        "expected a publish of body b'four' to topic 'orders' at least once, but the journal has 0",
    ),
    (
        lambda s: s.assert_published("orders", times=2),
        "expected a publish of a message to topic 'orders' twice, but the journal has 3",
    ),
    (
        lambda s: s.assert_not_published("orders", b"one"),
        "expected a publish of body b'one' to topic 'orders' never, but the journal has 1",
    ),
    (
        lambda s: s.assert_delivered("orders", "billing", "two", times=1),
        "expected a delivery of body b'two' by channel 'orders/billing' once, but the journal has 2",
    ),
    (
        lambda s: s.assert_finished(topic="orders", channel="billing"),
        "expected FIN of a message of 'orders/billing' once, but the journal has 2",
    ),
    (
        lambda s: s.assert_finished("two", times=3),
        "expected FIN of body b'two' 3 times, but the journal has 1",
    ),
    (lambda s: s.assert_not_finished("one"), "expected FIN of body b'one' never, but the journal has 1"),
    (
        lambda s: s.assert_requeued("two", delay=9),
        "expected REQ of body b'two' with a delay of 9 s at least once, but the journal has 0",
    ),
    (
        lambda s: s.assert_requeued("two", delay=(0, 1)),
        "expected REQ of body b'two' with a delay of 0 to 1 s at least once, but the journal has 0",
    ),
    (lambda s: s.assert_touched("one"), "expected TOUCH of body b'one' at least once, but the journal has 0"),
    (
        lambda s: s.assert_ready_at_most(0),
        "expected no RDY above 0, but worker:50001 sent RDY      1",
    ),
    (
        lambda s: s.assert_nothing_lost("orders", "billing"),
        "expected every message of topic 'orders' to be finished by channel 'billing', but 1 is missing: b'three'",
    ),
    (
        lambda s: s.assert_nothing_lost("orders", "other"),
        "expected every message of topic 'orders' to be finished by channel 'other', but 3 are missing, first b'one'",
    ),
]


@pytest.mark.parametrize("number", range(len(FALSE)))
def test_failure_has_one_sentence_and_the_lines_that_concern_it(server: Server, number: int) -> None:
    call, sentence = FALSE[number]
    with pytest.raises(AssertionError) as info:
        call(server)
    first, second, *rest = str(info.value).splitlines()
    assert first == f"{sentence}."
    assert second == "The journal has:"
    assert rest


def test_failure_shows_the_lines_of_the_message_in_order(server: Server) -> None:
    with pytest.raises(AssertionError) as info:
        server.assert_touched("one")
    assert [line.split()[3] for line in str(info.value).splitlines()[2:]] == ["MESSAGE", "FIN", "TOUCH"]


def test_failure_without_such_lines_shows_the_last_ones() -> None:
    talk = whole_conversation()
    talk.send("web", *[NOP] * LINES_MAX)
    server = Server(talk.journal)
    with pytest.raises(AssertionError, match="The journal has no such line; its last ones are:") as info:
        server.assert_published("audit")
    lines = str(info.value).splitlines()
    assert lines[2] == f"  … {len(server.journal) - LINES_MAX} lines before"
    assert len(lines) == 3 + LINES_MAX
    with pytest.raises(AssertionError, match="The journal is empty"):
        Server(Journal()).assert_published("audit")


def test_two_answers_to_one_delivery_are_found() -> None:
    talk = whole_conversation()
    talk.send("worker", encode_finish(IDS[1]))
    sentence = "answered once and in time, but worker:50001 answered one twice: FIN      0{15}1"
    with pytest.raises(AssertionError, match=sentence):
        Server(talk.journal).assert_answered_once()


def test_the_barrier_of_a_consumer_is_no_answer() -> None:
    talk = whole_conversation()
    for _ in range(2):
        talk.send("worker", encode_finish(BARRIER_ID))
        talk.receive("worker", encode_error(FinishFailed(f"FIN {BARRIER_ID.decode()} failed ID not in flight")))
    server = Server(talk.journal)
    server.assert_answered_once()
    server.assert_finished(times=2)
    server.assert_no_errors()


@pytest.mark.parametrize(
    "error", [refused(FinishFailed, "FIN", 3), refused(TouchFailed, "TOUCH", 3)], ids=["FIN", "TOUCH"]
)
def test_an_answer_that_the_broker_refused_is_found(error: bytes) -> None:
    talk = whole_conversation()
    talk.deliver("worker", 3, b"three")
    talk.send("worker", encode_touch(IDS[3]))
    talk.receive("worker", error)
    server = Server(talk.journal)
    with pytest.raises(AssertionError, match=r"the broker refused an answer: E_.* failed ID not in flight") as info:
        server.assert_answered_once()
    assert len(str(info.value).splitlines()) == 2 + 3
    with pytest.raises(AssertionError, match="expected no error, but the broker sent 1, the first one 'E_"):
        server.assert_no_errors()


def test_a_finish_that_the_broker_refused_finishes_nothing() -> None:
    talk = whole_conversation()
    talk.deliver("worker", 3, b"three")
    talk.send("worker", encode_finish(IDS[3]))
    talk.receive("worker", refused(FinishFailed, "FIN", 3))
    with pytest.raises(AssertionError, match="1 is missing: b'three'"):
        Server(talk.journal).assert_nothing_lost("orders", "billing")
    talk.deliver("worker", 3, b"three", attempts=2)
    talk.send("worker", encode_finish(IDS[3]))
    Server(talk.journal).assert_nothing_lost("orders", "billing")


def test_only_accepted_publishes_must_be_finished() -> None:
    talk = Conversation()
    talk.send("web", MAGIC_V2)
    talk.publish("web", b"t", b"refused", encode_error(BadMessage("PUB failed")))
    talk.send("other", MAGIC_V2)
    talk.publish("other", b"t", b"unanswered", b"")
    server = Server(talk.journal)
    server.assert_nothing_lost("t", "c")
    talk.receive("other", OK_FRAME)
    with pytest.raises(AssertionError, match="1 is missing: b'unanswered'"):
        server.assert_nothing_lost("t", "c")


def test_equal_bodies_are_counted() -> None:
    talk = Conversation()
    talk.subscribe("worker", b"t", b"c")
    talk.send("web", MAGIC_V2)
    for number in range(2):
        talk.publish("web", b"t", b"x")
        talk.deliver("worker", number, b"x")
    talk.send("worker", encode_finish(IDS[0]))
    with pytest.raises(AssertionError, match="1 is missing: b'x'"):
        Server(talk.journal).assert_nothing_lost("t", "c")
    talk.send("worker", encode_finish(IDS[1]))
    Server(talk.journal).assert_nothing_lost("t", "c")


def test_a_journal_that_dropped_reads_proves_no_absence() -> None:
    server = Server(whole_conversation(Journal(records_max=3)).journal)
    server.assert_finished("two", times=None)
    calls: list[Callable[[], None]] = [
        lambda: server.assert_not_published("orders"),
        lambda: server.assert_finished("two"),
        server.assert_no_errors,
        server.assert_answered_once,
        lambda: server.assert_ready_at_most(1),
        lambda: server.assert_nothing_lost("orders", "billing"),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="the journal dropped its oldest 14 reads"):
            call()


def test_a_journal_that_is_off_proves_nothing() -> None:
    server = Server(whole_conversation(Journal(enabled=False)).journal)
    with pytest.raises(AssertionError, match="the journal is off"):
        server.assert_not_published("orders")


def test_a_rdy_without_a_number_is_not_above_any() -> None:
    talk = Conversation()
    talk.subscribe("worker")
    talk.send("worker", b"RDY\n", encode_ready(2))
    with pytest.raises(AssertionError, match="sent RDY      2"):
        Server(talk.journal).assert_ready_at_most(1)


def test_a_message_that_a_fault_dropped_was_not_delivered() -> None:
    talk = Conversation()
    talk.subscribe("worker")
    talk.deliver("worker", 1, b"one", fault="drop")
    server = Server(talk.journal)
    server.assert_delivered("orders", "billing", times=0)
    talk.deliver("worker", 1, b"one", fault="duplicate")
    server.assert_delivered("orders", "billing", "one", times=1)
    talk.send("worker", encode_finish(IDS[1]))
    server.assert_answered_once()


def test_nothing_is_lost_if_the_broker_got_it() -> None:
    talk = Conversation()
    server = Server(talk.journal)
    talk.subscribe("worker", b"t", b"c")
    talk.send("web", MAGIC_V2)
    talk.send("web", encode_publish(b"t", b"dropped"), fault="drop")
    talk.send("web", encode_publish(b"t", b"refused"), fault="error")
    talk.receive("web", encode_error(BadMessage("PUB failed")), fault="error")
    server.assert_nothing_lost("t", "c")
    talk.send("web", encode_publish(b"t", b"accepted"))
    talk.receive("web", OK_FRAME, fault="drop_answer")
    talk.deliver("worker", 1, b"accepted")
    talk.send("worker", encode_finish(IDS[1]), fault="drop")
    server.assert_finished("accepted")
    with pytest.raises(AssertionError, match="1 is missing: b'accepted'"):
        server.assert_nothing_lost("t", "c")
    talk.deliver("worker", 1, b"accepted", attempts=2)
    talk.send("worker", encode_finish(IDS[1]))
    server.assert_nothing_lost("t", "c")


def test_an_answer_to_a_delivery_before_the_journal_is_no_second_one() -> None:
    talk = Conversation()
    talk.subscribe("worker")
    talk.send("worker", encode_finish(IDS[1]))
    Server(talk.journal).assert_answered_once()


WRONG: list[tuple[Callable[[Any], None], str]] = [
    (lambda s: s.assert_not_published(b"orders"), "topic is b'orders'; allowed is None or a text"),
    (lambda s: s.assert_delivered("orders", 5), "channel is 5; allowed is None or a text"),
    (lambda s: s.assert_not_finished(5), "body is 5; allowed is a text or bytes"),
    (lambda s: s.assert_finished("one", times=-1), "times is -1; allowed is None for at least once, or a number"),
    (lambda s: s.assert_touched("one", times="2"), "times is '2'; allowed is None"),
    (lambda s: s.assert_requeued(delay=-1, times=0), "delay is -1; allowed are seconds from 0"),
    (lambda s: s.assert_requeued(delay=(2, 1), times=0), "allowed are seconds from 0, or the lowest and the highest"),
    (
        lambda s: s.assert_nothing_lost("orders", "billing", kept="three"),
        "kept is 'three'; allowed is a list of bodies",
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_an_argument_that_no_journal_can_match_is_refused(server: Server, number: int) -> None:
    call, error = WRONG[number]
    with pytest.raises(OptionError, match=re.escape(error)):
        call(server)
