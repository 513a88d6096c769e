"""Linger: single publishes to one topic, gathered into batches.

    join() ──▶ open ──┬── nothing of the topic is in flight ───┬──▶ ready ── take() ──▶ in flight ── answered()
                      ├── enough messages, or enough bytes ────┤
                      └── the linger time has passed ──────────┘

A publish waits only where that saves commands. If nothing of its topic is in flight, it is sent with the next write.
Messages that are published while an answer is awaited are sent together: after that answer, when there are enough of
them, or when the linger time has passed. So a single publisher has no delay, and many publishers share commands. Each
batch has one deadline; a message has none.
"""

from __future__ import annotations

from nsqkit.errors import NotConnected

_OVERHEAD = 4
"""Bytes of an MPUB's body beside each message's own, and once more for their number."""


class BatchRefused(NotConnected):
    """The broker has kept nothing of a batch, because of one message, of its size, or of an earlier command.

    nsqd does not name the message, so each is sent again by itself; users do not get this error.
    """


class Lane:
    """One topic, while anything of it gathers or is in flight; ``batch`` is the open one."""

    __slots__ = ("batch", "in_flight_count", "topic")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.batch: Batch | None = None
        self.in_flight_count = 0


class Batch:
    """Messages that are sent in one command.

    Attributes:
        bodies: by the token that was given with each, in the order of publishing.
        size: bytes of an MPUB's body with these messages.
    """

    __slots__ = ("bodies", "lane", "size")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.bodies: dict[object, bytes] = {}
        self.size = _OVERHEAD


class Linger:
    """The batches of one connection, each open for ``linger_ns``, of at most ``count_max`` messages.

    A batch has at most ``size_max`` bytes, but a larger message is sent alone.
    """

    def __init__(self, *, linger_ns: int, count_max: int, size_max: int) -> None:
        self._linger_ns = linger_ns
        self._count_max = count_max
        self._size_max = size_max
        self._lanes: dict[bytes, Lane] = {}
        self._ready: dict[Batch, None] = {}  # an ordered set
        self._deadlines: dict[Batch, int] = {}  # sorted, since all stay open for the same time
        self._timeless: list[Batch] = []  # opened since set_deadlines was last called

    @property
    def has_ready(self) -> bool:
        """True while ``take`` would return something."""
        return bool(self._ready)

    @property
    def ready_size(self) -> int:
        """Bytes of the batches that are ready."""
        return sum([batch.size for batch in self._ready]) if self._ready else 0

    @property
    def count(self) -> int:
        return sum(len(batch.bodies) for batch in self._batches())

    def join(self, topic: bytes, body: bytes, token: object) -> bool:
        """Add a message; return True if ``set_deadlines`` must be called, and the ready batches be sent."""
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
        bodies[token] = body
        batch.size = size
        if len(bodies) >= self._count_max or size >= self._size_max:
            lane.batch = None
            self._ready[batch] = None
            return True
        return opened

    def withdraw(self, token: object) -> bool:
        for batch in self._batches():
            body = batch.bodies.pop(token, None)
            if body is not None:
                batch.size -= _OVERHEAD + len(body)
                if not batch.bodies:
                    self._remove(batch)
                    self._prune(batch.lane)
                return True
        return False

    def take(self) -> list[Batch]:
        """Return the ready batches; they are in flight from now on."""
        batches = list(self._ready)
        for batch in batches:
            self._remove(batch)
            batch.lane.in_flight_count += 1
        return batches

    def answered(self, batch: Batch) -> None:
        lane = batch.lane
        lane.in_flight_count -= 1
        if not lane.in_flight_count and lane.batch is not None:
            self._ready[lane.batch] = None
        self._prune(lane)

    def flush(self) -> None:
        self._ready.update(dict.fromkeys(self._batches()))

    def clear(self) -> list[object]:
        """Remove everything, and return the tokens of the messages that gathered."""
        tokens = [token for batch in self._batches() for token in batch.bodies]
        for parts in (self._lanes, self._ready, self._deadlines, self._timeless):
            parts.clear()
        return tokens

    # ---- time --------------------------------------------------------------------------------------------------

    def set_deadlines(self, now_ns: int) -> None:
        """Give a deadline to the batches that were opened since the last call."""
        for batch in self._timeless:
            if batch.lane.batch is batch:
                self._deadlines[batch] = now_ns + self._linger_ns
        self._timeless.clear()

    def next_deadline(self) -> int | None:
        return next(iter(self._deadlines.values()), None)

    def handle_deadline(self, now_ns: int) -> None:
        for batch, deadline_ns in list(self._deadlines.items()):
            if deadline_ns > now_ns:
                break
            del self._deadlines[batch]
            self._ready[batch] = None

    def _open(self, lane: Lane) -> Batch:
        if lane.batch is not None:
            self._ready[lane.batch] = None
        batch = lane.batch = Batch(lane)
        if lane.in_flight_count:
            self._timeless.append(batch)
        else:
            self._ready[batch] = None  # it takes more messages until it is sent
        return batch

    def _batches(self) -> list[Batch]:
        """Return the batches that are ready or open, each once."""
        still_open = [lane.batch for lane in self._lanes.values() if lane.batch is not None]
        return list(dict.fromkeys([*self._ready, *still_open]))

    def _remove(self, batch: Batch) -> None:
        if batch.lane.batch is batch:
            batch.lane.batch = None
        self._ready.pop(batch, None)
        self._deadlines.pop(batch, None)

    def _prune(self, lane: Lane) -> None:
        """Forget a topic that has no messages here: the number of topics has no limit."""
        if lane.batch is not None or lane.in_flight_count:
            return
        if all(batch.lane is not lane for batch in self._ready):
            self._lanes.pop(lane.topic, None)
