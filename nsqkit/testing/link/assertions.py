"""Assertions on a journal: what clients published, received and answered.

Each fails with one sentence, which has the expectation and what the journal has instead, and with the lines of the
journal that concern it. An assertion that depends on the whole journal fails if the journal was too small for it.

A command counts if a client sent it, also if a fault kept it from the broker. A message counts if the client received
it, also if a fault sent it.

``times`` is an exact number, 0 included; None stands for at least once. A body is ``bytes``, or ``str`` in UTF-8; None
stands for any.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import filterfalse
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from nsqkit.errors import OptionError
from nsqkit.testing.link.actions import ANSWERED
from nsqkit.testing.link.entries import ANSWER_ERRORS, lines, preview
from nsqkit.testing.link.items import PUBLISHES, Direction
from nsqkit.wire.commands import BARRIER_ID
from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsqkit.testing.link.entries import Entry
    from nsqkit.testing.link.journal import Journal

LINES_MAX: Final = 20
"""Lines of the journal in the message of a failure."""

MS_PER_S: Final = 1000


class HasJournal(Protocol):
    """An object with a journal."""

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...


class JournalAssertions:
    """The assertions, as methods of an object that has a journal."""

    def assert_published(
        self: HasJournal, topic: str, body: str | bytes | None = None, *, times: int | None = None
    ) -> None:
        """Fail unless clients published this body to the topic, by PUB, DPUB or MPUB, refused or not.

        Args:
            topic: the topic.
            body: of the message; None for any.
            times: how often, exactly; None for at least once.

        Raises:
            AssertionError: they did not, or another number of times.
        """
        __tracebackhide__ = True
        entries = [entry for entry in self.journal.commands(topic=topic) if entry.name in PUBLISHES]
        found = sum(_count(entry, body) for entry in entries)
        _check(self.journal, f"a publish of {_words(body)} to topic {topic!r}", found, times, entries)

    def assert_not_published(self: HasJournal, topic: str, body: str | bytes | None = None) -> None:
        """Fail if a client published this body, or anything, to the topic."""
        __tracebackhide__ = True
        entries = [entry for entry in self.journal.commands(topic=topic) if entry.name in PUBLISHES]
        found = sum(_count(entry, body) for entry in entries)
        _check(self.journal, f"a publish of {_words(body)} to topic {topic!r}", found, 0, entries)

    def assert_delivered(
        self: HasJournal, topic: str, channel: str, body: str | bytes | None = None, *, times: int | None = None
    ) -> None:
        """Fail unless the broker delivered this body to consumers of the channel; redeliveries count."""
        __tracebackhide__ = True
        entries = self.journal.messages(topic, channel)
        found = sum(_is(entry, body) and not entry.is_lost for entry in entries)
        _check(self.journal, f"a delivery of {_words(body)} by channel '{topic}/{channel}'", found, times, entries)

    def assert_finished(
        self: HasJournal,
        body: str | bytes | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        times: int | None = 1,
    ) -> None:
        """Fail unless consumers sent so many FINs of messages with this body, by default one.

        Args:
            body: of the messages; None for any.
            topic: of the messages; None for any, as ``channel``.
            channel: the channel that delivered them.
            times: how many FINs, exactly; None for at least one.

        Raises:
            AssertionError: the number is another one.
        """
        __tracebackhide__ = True
        _check_answers(self.journal, "FIN", body, topic, channel, times)

    def assert_not_finished(
        self: HasJournal, body: str | bytes | None = None, *, topic: str | None = None, channel: str | None = None
    ) -> None:
        """Fail if a consumer sent FIN of a message with this body; the arguments are those of ``assert_finished``."""
        __tracebackhide__ = True
        _check_answers(self.journal, "FIN", body, topic, channel, 0)

    def assert_requeued(
        self: HasJournal,
        body: str | bytes | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        delay: float | tuple[float, float] | None = None,
        times: int | None = None,
    ) -> None:
        """Fail unless consumers sent REQ of messages with this body.

        Args:
            body: of the messages; None for any.
            topic: of the messages; None for any, as ``channel``.
            channel: the channel that delivered them.
            delay: of the REQs in seconds, or the lowest and the highest; others do not count. None for any.
            times: how many REQs, exactly; None for at least one.

        Raises:
            AssertionError: the number is another one.
        """
        __tracebackhide__ = True
        low, high = _range(delay)

        def has_delay(entry: Entry) -> bool:
            seconds = (entry.delay_ms or 0) / MS_PER_S
            return low <= seconds <= high

        words = "" if delay is None else f" with a delay of {low if low == high else f'{low} to {high}'} s"
        _check_answers(self.journal, "REQ", body, topic, channel, times, has_delay, words)

    def assert_touched(
        self: HasJournal,
        body: str | bytes | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        times: int | None = None,
    ) -> None:
        """Fail unless consumers sent TOUCH of messages with this body; the arguments are those of ``assert_finished``.

        ``times=None``, the default, stands for at least one.
        """
        __tracebackhide__ = True
        _check_answers(self.journal, "TOUCH", body, topic, channel, times)

    def assert_ready_at_most(
        self: HasJournal, count: int, *, topic: str | None = None, channel: str | None = None
    ) -> None:
        """Fail if a client sent a RDY above ``count``, on any connection or on those of a topic or a channel."""
        __tracebackhide__ = True
        _check_complete(self.journal)
        entries = self.journal.commands("RDY", topic=topic, channel=channel)
        above = [entry for entry in entries if (entry.ready_count or 0) > count]
        if above:
            fail(self.journal, f"expected no RDY above {count}, but {above[0].client} sent {above[0].text}", entries)

    def assert_answered_once(self: HasJournal) -> None:
        """Fail if a delivery had two answers (FIN or REQ), or one that came too late.

        An answer is late if the broker refused it: E_FIN_FAILED, E_REQ_FAILED, and E_TOUCH_FAILED for a TOUCH.
        """
        __tracebackhide__ = True
        _check_complete(self.journal)
        answered: set[tuple[str, str]] = set()
        for entry in filterfalse(_is_barrier, self.journal):
            place = entry.address, entry.message_id
            sentence = ""
            if entry.name == "MESSAGE" and not entry.is_lost:
                answered.discard(place)
            elif entry.name == "ERROR" and entry.error.startswith(ANSWER_ERRORS):
                sentence = f"the broker refused an answer: {entry.error}"
            elif entry.name in ("FIN", "REQ") and place in answered:
                sentence = f"{entry.client} answered one twice: {entry.text}"
            elif entry.name in ("FIN", "REQ"):
                answered.add(place)
            if sentence:
                concerned = [other for other in self.journal if other.message_id == entry.message_id]
                fail(self.journal, f"expected each delivery to be answered once and in time, but {sentence}", concerned)

    def assert_nothing_lost(self: HasJournal, topic: str, channel: str, *, kept: Iterable[str | bytes] = ()) -> None:
        """Fail unless each message that the broker accepted for the topic was finished by the channel, or is kept.

        A message is accepted if its publish had the answer OK; messages are compared by their bodies. Here a command
        counts if the broker received it.

        Args:
            topic: the topic.
            channel: one channel of it.
            kept: bodies that the broker still has for this channel, waiting or in flight.

        Raises:
            AssertionError: messages are missing; the text has the first of them.
            OptionError: a name or a body is not one.
        """
        __tracebackhide__ = True
        encode_topic(topic)
        encode_channel(channel)
        _check_complete(self.journal)
        entries = list(self.journal)
        seen = [e for e in entries if not e.is_added and not (e.is_lost and e.direction is Direction.TO_BROKER)]
        missing = Counter(body for entry in _accepted(seen) if entry.topic == topic for body in entry.bodies)
        missing -= Counter(_finished(seen, topic, channel)) + Counter(_bodies("kept", kept))
        if missing:
            body = next(iter(missing))
            count = missing.total()
            sentence = (
                f"expected every message of topic {topic!r} to be finished by channel {channel!r}, but "
                f"{'1 is missing:' if count == 1 else f'{count} are missing, first'} {preview(body)}"
            )
            concerned = [e for e in entries if e.topic == topic and (body == e.body or body in e.bodies)]
            fail(self.journal, sentence, concerned)

    def assert_no_errors(self: HasJournal) -> None:
        """Fail if the broker sent an error."""
        __tracebackhide__ = True
        _check_complete(self.journal)
        entries = [*filterfalse(_is_barrier, self.journal.frames("ERROR"))]
        if entries:
            sentence = f"expected no error, but the broker sent {len(entries)}, the first one {entries[0].error!r}"
            fail(self.journal, sentence, entries)


def _check_answers(
    journal: Journal,
    name: str,
    body: str | bytes | None,
    topic: str | None,
    channel: str | None,
    times: int | None,
    condition: Callable[[Entry], bool] = lambda _: True,
    words: str = "",
) -> None:
    __tracebackhide__ = True
    answers = journal.commands(name, topic=topic, channel=channel)
    found = sum(_is(entry, body) and condition(entry) for entry in filterfalse(_is_barrier, answers))
    place = "/".join(filter(None, (topic, channel)))
    concerned = [
        entry
        for entry in journal
        if topic in (None, entry.topic)
        and channel in (None, entry.channel)
        and (entry.name == name or (entry.name in ("MESSAGE", "FIN", "REQ") and _is(entry, body)))
    ]
    _check(journal, f"{name} of {_words(body)}{place and f' of {place!r}'}{words}", found, times, concerned)


def _check(journal: Journal, what: str, found: int, times: int | None, entries: Sequence[Entry]) -> None:
    __tracebackhide__ = True
    if times is not None and (not isinstance(times, int) or times < 0):
        raise OptionError(f"times is {times!r}; allowed is None for at least once, or a number from 0")
    if times is None and found:
        return
    _check_complete(journal)
    if times is None or found != times:
        fail(journal, f"expected {what} {_often(times)}, but the journal has {found}", entries)


def _check_complete(journal: Journal) -> None:
    __tracebackhide__ = True
    if not journal.enabled:
        raise AssertionError("the journal is off, so nothing can be asserted about it")
    if journal.dropped_count:
        raise AssertionError(
            f"the journal dropped its oldest {journal.dropped_count} reads, so this cannot be asserted: "
            "use a larger Journal, or clear() it before the part of the test that matters"
        )


def fail(journal: Journal, sentence: str, entries: Sequence[Entry]) -> NoReturn:
    """Raise an AssertionError with a sentence and the last of these lines, or of all lines if there are none."""
    __tracebackhide__ = True
    head = "The journal has:"
    if not entries:
        entries = list(journal)
        head = "The journal has no such line; its last ones are:" if entries else "The journal is empty."
    left_out = len(entries) - LINES_MAX
    shown = [*([f"… {left_out} lines before"] if left_out > 0 else []), *lines(entries[-LINES_MAX:])]
    raise AssertionError("\n  ".join([f"{sentence}.\n{head}", *shown]))


def _accepted(entries: Iterable[Entry]) -> Iterable[Entry]:
    """Yield the publishes that were answered with OK. The broker answers the commands of a connection in order."""
    waiting: dict[str, deque[Entry]] = {}
    for entry in entries:
        if entry.name == "MAGIC":
            waiting[entry.address] = deque()
        elif entry.name in ANSWERED:
            waiting.setdefault(entry.address, deque()).append(entry)
        elif _is_answer(entry) and (queue := waiting.get(entry.address)):
            command = queue.popleft()
            if command.name in PUBLISHES and entry.name == "OK":
                yield command


def _finished(entries: Iterable[Entry], topic: str, channel: str) -> Iterable[bytes]:
    """Return the body of each message for which the channel had a FIN that the broker did not refuse."""
    counts: Counter[str] = Counter()
    bodies: dict[str, bytes] = {}
    for entry in entries:
        if entry.name == "FIN" and (entry.topic, entry.channel) == (topic, channel):
            counts[entry.message_id] += 1
            bodies[entry.message_id] = entry.body
        elif entry.error.startswith("E_FIN_FAILED"):
            counts[entry.message_id] -= 1
    return [body for message_id, body in bodies.items() if counts[message_id] > 0]


def _is_barrier(entry: Entry) -> bool:
    """Return whether this is a consumer's FIN of no message, or the refusal that it waits for."""
    return entry.message_id == BARRIER_ID.decode()


def _is_answer(entry: Entry) -> bool:
    if entry.direction is Direction.TO_BROKER:
        return False
    return entry.name in ("OK", "RESPONSE", "CLOSE_WAIT", "ERROR") and not entry.error.startswith(ANSWER_ERRORS)


def _bytes(body: str | bytes) -> bytes:
    if not isinstance(body, str | bytes):
        raise OptionError(f"body is {body!r}; allowed is a text or bytes")
    return body.encode() if isinstance(body, str) else body


def _bodies(name: str, bodies: Iterable[str | bytes]) -> list[bytes]:
    if isinstance(bodies, str | bytes):
        raise OptionError(f"{name} is {bodies!r}; allowed is a list of bodies")
    return [*map(_bytes, bodies)]


def _range(delay: float | tuple[float, float] | None) -> tuple[float, float]:
    """Return the lowest and the highest of the seconds that are allowed."""
    if delay is None:
        return 0.0, math.inf
    low, high = delay if isinstance(delay, tuple) else (delay, delay)
    if not 0 <= low <= high:
        raise OptionError(f"delay is {delay!r}; allowed are seconds from 0, or the lowest and the highest")
    return low, high


def _is(entry: Entry, body: str | bytes | None) -> bool:
    return body is None or entry.body == _bytes(body)


def _count(entry: Entry, body: str | bytes | None) -> int:
    return len(entry.bodies) if body is None else entry.bodies.count(_bytes(body))


def _words(body: str | bytes | None) -> str:
    return "a message" if body is None else f"body {preview(_bytes(body))}"


def _often(times: int | None) -> str:
    names = {None: "at least once", 0: "never", 1: "once", 2: "twice"}
    return names.get(times) or f"{times} times"
