"""The entries of a journal: commands and frames as values, with time, client and words.

An entry is made from an item when a journal is read, never while the connection is served. An item that is not what its
name promises, such as an MPUB with wrong sizes, is an entry too: the fields that cannot be read are empty.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from nsqkit.testing.link.items import PUBLISHES, Direction
from nsqkit.wire.bodies import split_batch
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, ID, ID_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsqkit.testing.link.items import Connection, Item

ANSWERS: Final = frozenset(("FIN", "REQ", "TOUCH"))
"""Commands with the id of a delivered message."""

PREVIEW_LENGTH: Final = 40
"""Bytes of a body that a line of text shows."""

CLIENT_WIDTH_MAX: Final = 28
"""Characters of the column of clients, at most."""

_TIMESTAMP_AND_ATTEMPTS = Struct(">qH")
_INT32 = Struct(">i")
ANSWER_ERRORS = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")

ADDED: Final = frozenset(("duplicate", "redeliver"))
"""The names of faults that add messages; ``error`` adds an ERROR."""

CHANGED: Final = frozenset(("garbage", "wrong_length", "wrong_type", "oversize"))
"""The names of faults that pass an item on with other bytes; the journal has those."""

Deliveries: TypeAlias = "Mapping[tuple[str, str, bytes], bytes]"
"""The frames of delivered messages, by topic, channel and id."""


@attrs.frozen
class Entry:
    """One command or one frame.

    Attributes:
        at_ns: the time at which it passed the link, ns since the Unix epoch, by the clock of the server.
        seconds: the same since the first entry of the journal.
        address: the address of the client's end of the connection.
        client_id: from the client's IDENTIFY; empty before.
        direction: ``Direction.TO_BROKER`` for a command, ``Direction.TO_CLIENT`` for a frame.
        name: of a command its first word, or ``MAGIC``; of a frame ``OK``, ``HEARTBEAT``, ``CLOSE_WAIT``, ``RESPONSE``,
            ``ERROR`` or ``MESSAGE``; ``BYTES`` for bytes that are not divided, such as those of TLS.
        topic: the one in a PUB, MPUB, DPUB or SUB; of all others that of the connection's subscription, or empty.
        channel: of the connection's subscription, or empty.
        message_id: 16 characters, of MESSAGE, FIN, REQ, TOUCH and of the errors that answer them; else empty.
        attempts: of a MESSAGE, else 0.
        timestamp_ns: of a MESSAGE, else 0.
        body: of PUB, DPUB, MESSAGE, IDENTIFY, AUTH and RESPONSE; of FIN, REQ and TOUCH the body of the message, if the
            journal has its delivery; the bytes of BYTES.
        bodies: the bodies of a PUB, MPUB or DPUB.
        params: the words of a command after the first one, such as the count of RDY.
        error: the text of an ERROR, which begins with its code.
        fault: the name of the fault that dropped, changed or added it; empty otherwise.
    """

    at_ns: int
    seconds: float
    address: str
    client_id: str
    direction: Direction
    name: str
    topic: str = ""
    channel: str = ""
    message_id: str = ""
    attempts: int = 0
    timestamp_ns: int = 0
    body: bytes = b""
    bodies: tuple[bytes, ...] = ()
    params: tuple[str, ...] = ()
    error: str = ""
    fault: str = ""

    @property
    def client(self) -> str:
        """The client id with the port, such as ``worker:50123``, or the address if there is no id."""
        return f"{self.client_id}:{self.address.rpartition(':')[2]}" if self.client_id else self.address

    @property
    def is_added(self) -> bool:
        """True of a frame that the broker did not send: a fault did."""
        return is_added(self.name, self.fault)

    @property
    def is_lost(self) -> bool:
        """True if a fault kept it, or a part of it, from the other side."""
        return is_lost(self.name, self.fault)

    @property
    def ready_count(self) -> int | None:
        """The count of a RDY; None of all others."""
        return _number(self.params[:1]) if self.name == "RDY" else None

    @property
    def delay_ms(self) -> int | None:
        """The delay of a REQ or a DPUB in milliseconds; None of all others."""
        return _number(self.params[1:2]) if self.name in ("REQ", "DPUB") else None

    def __str__(self) -> str:
        return "\n".join(lines([self]))

    @property
    def text(self) -> str:
        """Name, words and the begin of the body, without time and client."""
        parts = [f"{self.name:<8}", *self._words()]
        if self.fault:
            parts.append(f"[fault: {self.fault}]")
        return " ".join(parts).rstrip()

    def _words(self) -> list[str]:
        if self.name == "MESSAGE":
            return [self.message_id, f"{self.topic}/{self.channel}", f"attempts={self.attempts}", preview(self.body)]
        if self.name == "ERROR":
            return [self.error]
        words = list(self.params)
        if self.name in ANSWERS:
            words.append(f"{self.topic}/{self.channel}")
        if self.name == "AUTH":
            return [f"({len(self.body)} bytes)"]  # a secret
        if self.name == "MPUB":
            words.append(f"{len(self.bodies)} bodies:")
            words += [preview(body) for body in self.bodies[:3]] + ["…"] * (len(self.bodies) > 3)
        elif self.body:
            words.append(preview(self.body))
        return words


def preview(body: bytes) -> str:
    """Return the begin of a body, as Python writes bytes, and its size if that is not all of it."""
    if len(body) <= PREVIEW_LENGTH:
        return repr(body)
    return f"{body[:PREVIEW_LENGTH]!r}… ({len(body)} bytes)"


def lines(entries: Sequence[Entry]) -> list[str]:
    """Return a line of text for each entry: seconds, client, an arrow (``→`` to the broker), and the words."""
    times = [f"{entry.seconds:.3f}" for entry in entries]
    time_width = max(map(len, times), default=0)
    width = min(max((len(entry.client) for entry in entries), default=0), CLIENT_WIDTH_MAX)
    arrows = {Direction.TO_BROKER: "→", Direction.TO_CLIENT: "←"}
    return [
        f"{time:>{time_width}}  {entry.client:<{width}} {arrows[entry.direction]} {entry.text}"
        for time, entry in zip(times, entries, strict=True)
    ]


def read_entry(
    item: Item, at_ns: int, seconds: float, connection: Connection, direction: Direction, deliveries: Deliveries
) -> Entry:
    """Return the entry of an item; the body of an answer is that of its delivery."""
    fields = _command(item) if direction is Direction.TO_BROKER else _frame(item)
    params: tuple[str, ...] = fields.get("params", ())
    topic, channel = connection.topic, connection.channel
    if item.name == "SUB":
        topic, channel = (*params, "", "")[:2]
    elif item.name in PUBLISHES:
        topic = "".join(params[:1])
        channel = channel if topic == connection.topic else ""
    if item.name in ANSWERS:
        message_id = b"".join(item.words[:1])
        fields["body"] = deliveries.get((topic, channel, message_id), b"")[FRAME_HEADER_LENGTH:]
    return Entry(
        at_ns,
        seconds,
        connection.address,
        connection.client_id,
        direction,
        item.name,
        topic=topic,
        channel=channel,
        fault=item.fault,
        **fields,
    )


def is_added(name: str, fault: str) -> bool:
    """Return whether a fault sent an item of this name in place of the broker."""
    return fault in ADDED or (fault == "error" and name == "ERROR")


def is_lost(name: str, fault: str) -> bool:
    """Return whether a fault kept an item of this name, or a part of it, from the other side."""
    return bool(fault) and fault not in CHANGED and not is_added(name, fault)


def describe(connection: Connection, item: Item) -> None:
    """Record what an IDENTIFY or a SUB says about its client, unless an earlier one did."""
    if item.name == "SUB" and not connection.topic:
        connection.topic, connection.channel = [*(word.decode("latin-1") for word in item.words), "", ""][:2]
    elif item.name == "IDENTIFY" and not connection.client_id:
        connection.client_id = _client_id(item)


def _client_id(item: Item) -> str:
    try:
        found = json.loads(item.body).get("client_id", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _command(item: Item) -> dict[str, Any]:
    if item.name in ("MAGIC", "BYTES"):
        return {"body": item.data} if item.name == "BYTES" else {}
    params = tuple(word.decode("latin-1") for word in item.words)
    fields: dict[str, Any] = {"params": params}
    if item.name in ANSWERS:
        fields["message_id"] = "".join(params[:1])
    elif item.name == "MPUB":
        fields["bodies"] = _batch(item.body)
    elif item.name in ("PUB", "DPUB"):
        fields["body"] = item.body
        fields["bodies"] = (item.body,)
    elif item.name in ("IDENTIFY", "AUTH"):
        fields["body"] = item.body
    return fields


def _batch(data: bytes) -> tuple[bytes, ...]:
    if len(data) < 4:
        return ()
    return tuple(split_batch(data, 4, len(data), _INT32.unpack_from(data)[0], len(data)) or ())


def _frame(item: Item) -> dict[str, Any]:
    if item.name == "BYTES":
        return {"body": item.data}
    if item.name == "RESPONSE":
        return {"body": item.body}
    if item.name == "ERROR":
        error = item.body.decode("utf-8", "replace")
        words = error.split(" ", 3)
        has_id = words[0] in ANSWER_ERRORS and len(words) > 2 and len(words[2]) == ID_LENGTH
        return {"error": error, "message_id": words[2] if has_id else ""}
    if item.name == "MESSAGE" and len(item.data) >= FRAME_HEADER_LENGTH:
        timestamp_ns, attempts = _TIMESTAMP_AND_ATTEMPTS.unpack_from(item.data, 8)
        body = item.data[FRAME_HEADER_LENGTH:]
        return {
            "timestamp_ns": timestamp_ns,
            "attempts": attempts,
            "message_id": item.data[ID].decode("latin-1"),
            "body": body,
        }
    return {}


def _number(words: Iterable[str]) -> int | None:
    for word in words:
        if word.isdecimal():
            return int(word[-19:])
    return None
