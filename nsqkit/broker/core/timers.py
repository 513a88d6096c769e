"""What the broker has to do next: deadlines to keep, channels to deliver from, sessions to write to.

The rule it guards: act once per wake-up. A command only notes here what follows from it; when the whole receive
buffer has been worked through, the broker delivers once from each channel that was noted, and the server writes
once to each session that has bytes. The order in which things were noted is kept, so a run can be repeated.

Deadlines are lower bounds. An owner is noted with the earliest time at which it could have something to do; it
looks for itself when that time has come and says when to come again. So nothing is rescheduled when a message is
finished in time, which is what happens to nearly all of them, and an idle channel costs nothing. An entry that an
earlier one has superseded stays in the heap until its time, or until such entries are the greater part.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.channel import Channel


_HEAP_LENGTH_MIN = 64  # below this it is not worth looking for superseded entries


class Timed(Protocol):
    """What can stand in the agenda with a time."""

    due_ns: int | None
    """When the agenda will call, kept by the agenda; None when it will not."""

    def handle_deadline(self, now_ns: int) -> int | None:
        """Do what is due at ``now_ns``; return when to call again, None for never."""
        ...


class Agenda:
    """The deadlines and the notes of one broker.

    Attributes:
        revision: goes up when a topic or channel is made, deleted, paused or unpaused.
        has_news: deadlines, names, questions or wishes for a commit came since somebody has set it to False; bytes
            to send are no news.
        published_ns: when somebody has published last; whoever publishes waits for an answer.
    """

    __slots__ = (
        *("_count", "_heap", "_heap_length_max", "_to_ask", "_to_deliver", "_to_write"),
        *("has_news", "published_ns", "revision"),
    )

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._heap_length_max = _HEAP_LENGTH_MIN
        self._count = 0  # makes equal times come in the order in which they were noted
        self.revision = 0
        self.has_news = False
        self.published_ns = 0
        self._to_ask: dict[Session, None] = {}
        self._to_deliver: dict[Channel, None] = {}
        self._to_write: dict[Session, None] = {}

    def schedule(self, owner: Timed, due_ns: int) -> None:
        """Call ``owner`` at ``due_ns`` or earlier; a later time than the one already noted changes nothing."""
        if owner.due_ns is None or due_ns < owner.due_ns:
            owner.due_ns = due_ns
            self.has_news = True
            self._count += 1
            heappush(self._heap, (due_ns, self._count, owner))
            if len(self._heap) > self._heap_length_max:
                self._drop_superseded()

    def schedule_messages(self, owner: Timed, due_ns: int) -> None:
        """Call ``owner``, whose messages time out or are deferred, at ``due_ns`` or earlier."""
        self.schedule(owner, due_ns)

    def forget(self, owner: Timed) -> None:
        """Do not call ``owner`` unless it is scheduled anew."""
        owner.due_ns = None

    def _drop_superseded(self) -> None:
        """Keep the one entry of each owner that counts; the next time there are twice as many, do so again."""
        valid = {entry[2]: entry for entry in self._heap if entry[2].due_ns == entry[0]}
        self._heap = sorted(valid.values())
        self._heap_length_max = max(2 * len(valid), _HEAP_LENGTH_MIN)

    def next_deadline(self) -> int | None:
        """Return the earliest time noted."""
        heap = self._heap
        while heap and heap[0][2].due_ns != heap[0][0]:
            heappop(heap)  # superseded by an earlier time of the same owner
        return heap[0][0] if heap else None

    def handle_deadline(self, now_ns: int) -> list[tuple[Timed, Exception]]:
        """Call every owner whose time has come, once; return those in which an error came up, and the errors."""
        failures: list[tuple[Timed, Exception]] = []
        due = []
        while (deadline_ns := self.next_deadline()) is not None and deadline_ns <= now_ns:
            owner = heappop(self._heap)[2]
            owner.due_ns = None
            due.append(owner)
        for owner in due:
            try:
                again_ns = owner.handle_deadline(now_ns)
            except Exception as error:
                failures.append((owner, error))
                continue
            if again_ns is not None:
                self.schedule(owner, again_ns)
        return failures

    def note_names(self) -> None:
        """Note that a topic or channel was made, deleted, paused or unpaused."""
        self.revision += 1
        self.has_news = True

    def deliver(self, channel: Channel) -> None:
        """Note that ``channel`` may have something for a session that has room."""
        self._to_deliver[channel] = None

    def take_channels(self) -> dict[Channel, None]:
        """Return the channels noted, and forget them."""
        channels = self._to_deliver
        if channels:
            self._to_deliver = {}
        return channels

    def write(self, session: Session) -> None:
        """Note that ``session`` has bytes to send, or has come to its end."""
        self._to_write[session] = None

    def take_sessions(self) -> dict[Session, None]:
        """Return the sessions noted, and forget them."""
        sessions = self._to_write
        if sessions:
            self._to_write = {}
        return sessions

    def ask(self, session: Session) -> None:
        """Note that an auth server has to be asked for ``session``, which waits for the answer."""
        self._to_ask[session] = None
        self.has_news = True

    @property
    def has_questions(self) -> bool:
        """True while a session waits for an auth server to be asked."""
        return bool(self._to_ask)

    def take_questions(self) -> dict[Session, None]:
        """Return the sessions that wait for an auth server, and forget them."""
        sessions = self._to_ask
        if sessions:
            self._to_ask = {}
        return sessions
