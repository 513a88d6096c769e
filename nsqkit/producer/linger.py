"""Linger: single publishes to one topic, gathered into batches.

    join() ──▶ open ──┬── nothing of the topic is on its way ──┬──▶ ready ── take() ──▶ on its way ── answered()
                      ├── enough messages, or enough bytes ────┤
                      └── the linger is over ──────────────────┘

The rule it guards: nobody waits for company without need. What is published while nothing of its topic is on its way
goes with the next write; what comes while an answer is awaited gathers until that answer, until there is enough of
it, or for the linger, whichever is first. So a lone publisher pays nothing, and a crowd shares its commands. There is
one deadline for a batch, and none for a message.

How to read it: ``join`` puts in, ``take`` takes out what is ready, ``answered`` says that it has come back. A *lane*
is what is known of one topic, for as long as anything of it gathers or is on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.errors import NotConnected

if TYPE_CHECKING:
    from nsqkit.producer.waiter import Waiter

_OVERHEAD = 4
"""Bytes that each message in an MPUB has beside its body, and the whole beside its messages."""


class BatchRefused(NotConnected):
    """The broker has kept nothing of a batch, because of one message, of its size, or of a command before it.

    nsqd does not tell which message it was, so each is sent again by itself; users do not get this error.
    """


class Lane:
    """One topic.

    Attributes:
        topic: its name.
        batch: the one that takes more, None if there is none.
        outstanding_count: batches on their way.
    """

    __slots__ = ("batch", "outstanding_count", "topic")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.batch: Batch | None = None
        self.outstanding_count = 0


class Batch:
    """Messages that go in one command.

    Attributes:
        lane: of their topic.
        bodies: what was published, by who waits for the answer, in the order in which it was.
        size: how many bytes an MPUB of them has as its body.
    """

    __slots__ = ("bodies", "lane", "size")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.bodies: dict[Waiter, bytes] = {}
        self.size = _OVERHEAD


class Linger:
    """What gathers on one connection.

    Args:
        linger_ns: how long a batch waits for more.
        count_max: messages in a batch.
        size_max: bytes of a batch; a message that has more alone goes alone.
    """

    def __init__(self, *, linger_ns: int, count_max: int, size_max: int) -> None:
        self._linger_ns = linger_ns
        self._count_max = count_max
        self._size_max = size_max
        self._lanes: dict[bytes, Lane] = {}
        self._ready: dict[Batch, None] = {}  # a set that keeps its order
        self._deadlines: dict[Batch, int] = {}  # in order, since all wait equally long
        self._timeless: list[Batch] = []  # opened since the time was last told

    @property
    def has_ready(self) -> bool:
        """True while ``take`` would return something."""
        return bool(self._ready)

    @property
    def size(self) -> int:
        """Bytes of what is ready; what still takes more has a limit of its own."""
        return sum([batch.size for batch in self._ready]) if self._ready else 0

    @property
    def count(self) -> int:
        """Messages that gather."""
        return sum(len(batch.bodies) for batch in self._batches())

    def join(self, topic: bytes, body: bytes, waiter: Waiter) -> bool:
        """Add a message; tell whether ``set_deadlines`` is to be called, and ``take``."""
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = Lane(topic)
        batch = lane.batch
        if batch is not None and (size := batch.size + _OVERHEAD + len(body)) <= self._size_max:
            opened = False
        else:
            batch = self._open(lane)
            size = batch.size + _OVERHEAD + len(body)
            opened = True
        bodies = batch.bodies
        bodies[waiter] = body
        batch.size = size
        if len(bodies) >= self._count_max or size >= self._size_max:
            lane.batch = None
            self._ready[batch] = None
            return True
        return opened

    def withdraw(self, waiter: Waiter) -> bool:
        """Take a message out again; tell whether it was still there."""
        for batch in self._batches():
            body = batch.bodies.pop(waiter, None)
            if body is not None:
                batch.size -= _OVERHEAD + len(body)
                if not batch.bodies:
                    self._remove(batch)
                    self._prune(batch.lane)
                return True
        return False

    def take(self) -> list[Batch]:
        """Return, and forget, the batches that are ready; they are on their way from now on."""
        batches = list(self._ready)
        for batch in batches:
            self._remove(batch)
            batch.lane.outstanding_count += 1
        return batches

    def answered(self, batch: Batch) -> None:
        """Take note that a batch is no longer on its way."""
        lane = batch.lane
        lane.outstanding_count -= 1
        if not lane.outstanding_count and lane.batch is not None:
            self._ready[lane.batch] = None
        self._prune(lane)

    def hurry(self) -> None:
        """Let nothing wait for more."""
        self._ready.update(dict.fromkeys(self._batches()))

    def end(self) -> list[Waiter]:
        """Return, and forget, whoever waits for something that is not on its way."""
        waiters = [waiter for batch in self._batches() for waiter in batch.bodies]
        for parts in (self._lanes, self._ready, self._deadlines, self._timeless):
            parts.clear()
        return waiters

    # ---- time --------------------------------------------------------------------------------------------------

    def set_deadlines(self, now_ns: int) -> None:
        """Say when those were opened that were opened just now."""
        for batch in self._timeless:
            if batch.lane.batch is batch:
                self._deadlines[batch] = now_ns + self._linger_ns
        self._timeless.clear()

    def next_deadline(self) -> int | None:
        """Return when the first of the open batches has waited long enough."""
        return next(iter(self._deadlines.values()), None)

    def handle_deadline(self, now_ns: int) -> None:
        """Make ready what has waited long enough."""
        for batch, deadline_ns in list(self._deadlines.items()):
            if deadline_ns > now_ns:
                break
            del self._deadlines[batch]
            self._ready[batch] = None

    # ---- within ------------------------------------------------------------------------------------------------

    def _open(self, lane: Lane) -> Batch:
        if lane.batch is not None:
            self._ready[lane.batch] = None
        batch = lane.batch = Batch(lane)
        if lane.outstanding_count:
            self._timeless.append(batch)
        else:
            self._ready[batch] = None  # it takes more until it is taken
        return batch

    def _batches(self) -> list[Batch]:
        """List what gathers, each batch once."""
        still_open = [lane.batch for lane in self._lanes.values() if lane.batch is not None]
        return list(dict.fromkeys([*self._ready, *still_open]))

    def _remove(self, batch: Batch) -> None:
        if batch.lane.batch is batch:
            batch.lane.batch = None
        self._ready.pop(batch, None)
        self._deadlines.pop(batch, None)

    def _prune(self, lane: Lane) -> None:
        """Forget a topic of which there is nothing; there may be any number of topics in the end."""
        if lane.batch is not None or lane.outstanding_count:
            return
        if all(batch.lane is not lane for batch in self._ready):
            self._lanes.pop(lane.topic, None)
