"""Reads the bytes of a client's connections, and counts what its statistics have to say.

It shares nothing with nsqkit but the names of commands. A connection that compresses is not read.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

SIZED: Final = frozenset((b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"))
PUBLISHES: Final = frozenset((b"PUB", b"MPUB", b"DPUB"))
MAGIC: Final = b"  V2"
BARRIER_ID: Final = b"0" * 16
ERROR, MESSAGE = 1, 2
UNDER_WAY: Final = 0.35
"""Seconds in which a message that was delivered before a change certainly arrives: it may wait in nsqd for 0.25 s."""
CROSSING: Final = 0.01
"""Seconds in which a client may still send an answer to the delivery before the one that has just arrived."""
ANSWERS: Final = {b"E_FIN_FAILED": "finished", b"E_REQ_FAILED": "requeued", b"E_TOUCH_FAILED": "touched"}


class Wire:
    """The bytes of one connection, as its client has sent and received them.

    Args:
        time: returns the time.
        on_messages: called after messages were received.
        on_answer: called with the messages of a publish before the client gets its answer.

    Attributes:
        is_read: whether the bytes can be read.
        is_over: whether the client has sent its last bytes.
        has_part: whether a part of a command was sent.
        late: the refusals that arrive then, or behind CLOSE_WAIT, and the answers that are sent after the end of the
            connection, by the names of ``ConsumerStats``; the client may count them, or not.
        is_lost: whether the client has received the end of the connection.
        is_subscribed: from the command until CLS.
        counts: of the messages, by the names of ``ConsumerStats``.
        crossed: answers that may be to a delivery before the last one, which is without an answer then.
        held: the time at which each message without an answer times out, by id.
        rdy_count: the RDY last sent.
        ready_at: the time at which RDY was last above 0; infinite while it is.
        lowered_at: the time at which RDY was last lowered.
        raised_at: the time at which RDY was last raised.
        sent: the messages of each publish without an answer.
        answered: the messages of each publish with its answer, whether it is an error.
    """

    def __init__(
        self, time: Callable[[], float], on_messages: Callable[[], None], on_answer: Callable[[list[bytes]], None]
    ) -> None:
        self.is_read = True
        self.is_over = self.is_lost = self.has_part = False
        self.is_subscribed = False
        self.counts: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self.crossed = 0
        self.held: dict[bytes, float] = {}
        self.rdy_count = 0
        self.ready_at = self.lowered_at = self.raised_at = -math.inf
        self.sent: deque[list[bytes]] = deque()
        self.answered: list[tuple[list[bytes], bytes | None]] = []
        self._time = time
        self._on_messages = on_messages
        self._on_answer = on_answer
        self._answered_at: dict[bytes, float] = {}
        self._again_at: dict[bytes, float] = {}  # by id, the time at which a message that was held came once more
        self._msg_timeout = self._max_msg_timeout = math.inf
        self._touched_max: dict[bytes, float] = {}  # by id, the time beyond which no TOUCH keeps a message
        self._out = b""
        self._in = b""
        self._has_begun = self._is_closed = False
        self._early: bytes | None = None  # the refusal of a publish of which a part was sent

    def held_count(self, now: float, late_since: float, late_at: float) -> int:
        """Return how many messages have certainly not timed out, where bytes were late between two times."""
        soonest = now + UNDER_WAY
        if late_since + self._msg_timeout > soonest:
            return sum(due > soonest for due in self.held.values())
        return sum(due > max(soonest, late_at + UNDER_WAY + self._msg_timeout) for due in self.held.values())

    @property
    def published(self) -> Iterator[list[bytes]]:
        """The messages of each publish."""
        yield from self.sent
        yield from (bodies for bodies, _ in self.answered)

    # ---- from the client -----------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Read what the client sends."""
        if not self.is_read:
            return
        data = self._out + data
        begin = 0
        if not self._has_begun:
            self._has_begun, begin = True, len(MAGIC)
        while (end := data.find(b"\n", begin)) >= 0:
            words = data[begin:end].split(b" ")
            end += 1
            body = b""
            if words[0] in SIZED:
                size = int.from_bytes(data[end : end + 4], "big")
                if len(data) < end + 4 or len(data) < end + 4 + size:
                    break
                body = data[end + 4 : end + 4 + size]
                end += 4 + size
            begin = end
            self._on_command(words, body)
        self._out = data[begin:]
        self.has_part = bool(self._out)

    def _on_command(self, words: list[bytes], body: bytes) -> None:
        verb = words[0]
        if verb in PUBLISHES:
            self.sent.append(list(_bodies(body)) if verb == b"MPUB" else [body])
            if self._early is not None:
                self._take_answer(self._early)
                self._early = None
        elif verb == b"FIN" and words[1] != BARRIER_ID:
            self._answer("finished", words[1])
        elif verb == b"REQ":
            self._answer("requeued", words[1])
        elif verb == b"TOUCH":
            self.counts["touched"] += 1
            touched_until = self._time() + self._msg_timeout
            self.held[words[1]] = min(touched_until, self._touched_max.get(words[1], math.inf))
        elif verb == b"RDY":
            self._on_ready(int(words[1]))
        elif verb in {b"SUB", b"CLS"}:
            self.is_subscribed = verb == b"SUB"

    def _answer(self, count: str, message_id: bytes) -> None:
        self.counts[count] += 1
        self.late[count] += self.is_lost
        self.counts["answered"] += 1
        self.held.pop(message_id, None)
        self.crossed += self._time() < self._again_at.pop(message_id, -math.inf) + CROSSING
        self._answered_at[message_id] = self._time()

    def _on_ready(self, rdy_count: int) -> None:
        now = self._time()
        if rdy_count < self.rdy_count:
            self.lowered_at = now
        elif rdy_count > self.rdy_count:
            self.raised_at = now
        if rdy_count or self.rdy_count:
            self.ready_at = math.inf if rdy_count else now
        self.rdy_count = rdy_count

    # ---- from the broker -----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Read what the client receives."""
        if not self.is_read:
            return
        data = self._in + data
        begin, received = 0, self.counts["received"]
        while len(data) >= begin + 4 and len(data) >= (
            end := begin + 4 + int.from_bytes(data[begin : begin + 4], "big")
        ):
            self._on_frame(data[begin + 7], data[begin + 8 : end])
            begin = end
        self._in = data[begin:]
        if self.counts["received"] != received:
            self._on_messages()

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if self.is_over or self._is_closed:
            if kind == ERROR and BARRIER_ID not in payload:
                self.late[ANSWERS.get(payload.partition(b" ")[0], "")] += 1
        elif kind == MESSAGE:
            self.counts["received"] += 1
            now, message_id = self._time(), payload[10:26]
            if message_id in self.held:
                self._again_at[message_id] = now
            # An answer that was under way when its message timed out is one to the next delivery.
            is_answered = now < self._answered_at.get(message_id, -math.inf) + UNDER_WAY
            self.held[message_id] = now if is_answered else now + self._msg_timeout
            self._touched_max[message_id] = now + self._max_msg_timeout
        elif kind == ERROR:
            self._on_error(payload)
        elif payload == b"CLOSE_WAIT":
            self._is_closed = True
        elif payload.startswith(b"{") and "msg_timeout" in (answer := json.loads(payload)):  # not that to AUTH
            self._msg_timeout, self._max_msg_timeout = answer["msg_timeout"] / 1000, answer["max_msg_timeout"] / 1000
            self.is_read = not (answer["snappy"] or answer["deflate"])
        elif payload == b"OK" and self.sent:
            self._take_answer(None)

    def _on_error(self, payload: bytes) -> None:
        count = ANSWERS.get(payload.partition(b" ")[0])
        if count is not None and BARRIER_ID not in payload:
            self.counts["refused"] += 1
            if count != "touched":
                self.counts[count] -= 1
            elif (message_id := payload.split(b" ")[2]) in self.held:  # it has timed out there
                self.held[message_id] = self._time()
        elif count is None and self.sent:
            self._take_answer(payload)
        elif count is None and self.has_part:
            self._early = payload

    @property
    def is_useful(self) -> bool:
        """Whether it has brought a message, or an answer to a publish."""
        return bool(self.counts["received"]) or any(error is None for _, error in self.answered)

    def _take_answer(self, error: bytes | None) -> None:
        self.answered.append((self.sent.popleft(), error))
        self._on_answer(self.answered[-1][0])


def _bodies(body: bytes) -> Iterator[bytes]:
    begin = 4
    while begin < len(body):
        end = begin + 4 + int.from_bytes(body[begin : begin + 4], "big")
        yield body[begin + 4 : end]
        begin = end
