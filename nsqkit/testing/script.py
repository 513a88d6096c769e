"""A script: what a broker expects of one client, and what it sends, step by step; a machine without I/O.

    expect("IDENTIFY"), reply(), expect("SUB", topic="orders"), reply(), expect("RDY"), message("one"), expect("FIN")

The client's commands must be those that the steps expect, in this order. Only the magic and NOP, the answer to a
heartbeat, need no step. After the last step the client may send anything. A step that can never be reached, or that no
client can satisfy, is an error at the line that wrote it.
"""

from __future__ import annotations

import json
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from nsqkit.errors import BrokerError, OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.testing.link.entries import describe, preview, read_entry
from nsqkit.testing.link.items import Direction, Splitter
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import ERROR_FRAME_TYPE, HEARTBEAT_FRAME, RESPONSE_FRAME_TYPE
from nsqkit.wire.messages import ATTEMPTS_MAX, ID_LENGTH, encode_message, id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from nsqkit.testing.link.entries import Entry
    from nsqkit.testing.link.items import Connection, Item
    from nsqkit.testing.link.journal import Journal

NS_PER_S: Final = 1_000_000_000
TIMESTAMP_MAX: Final = (1 << 63) - 1

_SIZE_AND_TYPE = Struct(">ii")
_ANSWER = ("message_id", "body")
MATCHES: Final = {
    "IDENTIFY": ("client_id", "body"),
    "AUTH": ("body",),
    "SUB": ("topic", "channel"),
    "PUB": ("topic", "body"),
    "MPUB": ("topic", "bodies"),
    "DPUB": ("topic", "body", "delay_ms"),
    "RDY": ("ready_count",),
    "FIN": _ANSWER,
    "REQ": (*_ANSWER, "delay_ms"),
    "TOUCH": _ANSWER,
    "CLS": (),
    "NOP": (),
}
"""The commands that a step may expect, each with the fields of its entry that a step may compare."""


# ---- steps -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Expect:
    """Wait for a command, with these fields."""

    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return f"expect({', '.join([repr(self.name), *(f'{key}={value!r}' for key, value in self.fields.items())])})"

    def accepts(self, entry: Entry) -> bool:
        """Return whether a command is the one."""
        return entry.name == self.name and all(getattr(entry, key) == value for key, value in self.fields.items())


@attrs.frozen
class Send:
    """Send bytes."""

    data: bytes
    text: str

    def __str__(self) -> str:
        return self.text


@attrs.frozen
class Deliver:
    """Send a message."""

    body: bytes
    attempts: int
    message_id: str | None
    timestamp_ns: int | None

    def __str__(self) -> str:
        return f"message({preview(self.body)}, attempts={self.attempts})"


@attrs.frozen
class Wait:
    """Wait for a time."""

    delay_ns: int

    def __str__(self) -> str:
        return f"wait({self.delay_ns / NS_PER_S:g})"


@attrs.frozen
class Close:
    """Close the connection."""

    is_reset: bool

    def __str__(self) -> str:
        return "reset()" if self.is_reset else "close()"


Step: TypeAlias = "Expect | Send | Deliver | Wait | Close"


def expect(name: str, **fields: Any) -> Expect:
    """Wait for a command of the client.

    Args:
        name: such as ``"FIN"``.
        fields: values that its entry in the journal must have, such as ``topic="orders"``, ``body="one"`` (``str`` or
            ``bytes``), ``bodies=["one", "two"]``, ``ready_count=1``, ``delay_ms=500`` or ``message_id``.

    Raises:
        OptionError: there is no such command, or it does not have this field.
    """
    if name not in MATCHES:
        raise OptionError(f"there is no command {name!r} to expect; allowed are {', '.join(MATCHES)}")
    for key in fields:
        if key not in MATCHES[name]:
            allowed = ", ".join(MATCHES[name]) or "no field"
            raise OptionError(f"{name} has no field {key!r} to expect; allowed is {allowed}")
    return Expect(name, {key: _value(key, value) for key, value in fields.items()})


def reply(answer: str | bytes | BrokerError | Mapping[str, Any] = "OK") -> Send:
    """Send an answer.

    Args:
        answer: text for a response such as ``"OK"``, or for an error if it begins with ``E_``; an error of
            ``nsqkit.errors``; a mapping for a response in JSON, as to IDENTIFY; ``bytes`` are sent as they are.
    """
    if isinstance(answer, bytes):
        return Send(answer, f"reply({preview(answer)})")
    if isinstance(answer, BrokerError):
        data = _frame(ERROR_FRAME_TYPE, encode_error_text(answer))
    elif isinstance(answer, str):
        is_error = answer.startswith("E_")
        data = _frame(ERROR_FRAME_TYPE if is_error else RESPONSE_FRAME_TYPE, answer.encode())
    else:
        data = _frame(RESPONSE_FRAME_TYPE, json.dumps(dict(answer)).encode())
    return Send(data, f"reply({answer!r})")


def message(
    body: str | bytes, *, attempts: int = 1, message_id: str | None = None, timestamp_ns: int | None = None
) -> Deliver:
    """Send a message.

    Args:
        body: of the message; ``str`` in UTF-8.
        attempts: 0 to 65535.
        message_id: 16 ASCII characters; None for its number among the messages of the connection.
        timestamp_ns: ns since the Unix epoch; None for the time at which it is sent.

    Raises:
        OptionError: a value is not allowed.
    """
    if not 0 <= attempts <= ATTEMPTS_MAX:
        raise OptionError(f"attempts is {attempts}; allowed are 0 to {ATTEMPTS_MAX}")
    if message_id is not None and (len(message_id) != ID_LENGTH or not message_id.isascii()):
        raise OptionError(f"message_id is {message_id!r}; allowed are {ID_LENGTH} ASCII characters")
    if timestamp_ns is not None and not 0 <= timestamp_ns <= TIMESTAMP_MAX:
        raise OptionError(f"timestamp_ns is {timestamp_ns}; allowed are 0 to {TIMESTAMP_MAX}")
    return Deliver(_value("body", body), attempts, message_id, timestamp_ns)


def heartbeat() -> Send:
    """Send a heartbeat. The client answers NOP, which needs no step."""
    return Send(HEARTBEAT_FRAME, "heartbeat()")


def wait(seconds: float | timedelta) -> Wait:
    """Wait for a time, by the server's clock; commands that come meanwhile wait for their steps.

    Raises:
        OptionError: the time is negative.
    """
    return Wait(round(take_seconds("seconds", seconds, least=0.0) * NS_PER_S))


def close() -> Close:
    """Close the connection after all bytes that were sent; the last step."""
    return Close(is_reset=False)


def reset() -> Close:
    """Reset the connection, which may discard bytes that were sent just before; the last step."""
    return Close(is_reset=True)


def check_steps(steps: Sequence[object]) -> tuple[Step, ...]:
    """Return the steps of one connection.

    Raises:
        OptionError: there are none, one is not a step, or one can never be reached.
    """
    if not steps:
        raise OptionError("a script must have at least one step, such as expect('IDENTIFY')")
    checked: list[Step] = []
    for number, step in enumerate(steps, 1):
        if not isinstance(step, Expect | Send | Deliver | Wait | Close):
            raise OptionError(f"step {number} is {step!r}; allowed are the results of expect(), reply(), message(), …")
        if checked and isinstance(checked[-1], Close):
            raise OptionError(f"step {number}, {step}, can never be reached: step {number - 1} is {checked[-1]}")
        checked.append(step)
    return tuple(checked)


def _frame(frame_type: int, payload: bytes) -> bytes:
    return _SIZE_AND_TYPE.pack(4 + len(payload), frame_type) + payload


def _value(key: str, value: Any) -> Any:
    allowed: Any = str
    if key in ("ready_count", "delay_ms"):
        allowed = int
    elif key == "body":
        value, allowed = _bytes(value), bytes
    elif key == "bodies":
        value, allowed = tuple(map(_bytes, value)) if isinstance(value, list | tuple) else value, tuple
    if not isinstance(value, allowed):
        raise OptionError(f"{key} is {value!r}; allowed is {_KINDS[allowed]}")
    return value


_KINDS = {str: "a text", int: "a whole number", bytes: "a text or bytes", tuple: "a list of texts or bytes"}


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


# ---- the machine -----------------------------------------------------------------------------------------------------


class Script:
    """The broker's end of one connection.

    Args:
        steps: of ``check_steps``.
        connection: the client.
        journal: where both directions are recorded.
        now_ns: the time.

    Attributes:
        ended: the connection is to be closed after the bytes that wait are sent.
        is_reset: it is to be reset.
        failure: a sentence about the command that was not expected; empty if there is none.
    """

    has_input = outbox_full = has_events = False

    def __init__(self, steps: Sequence[Step], connection: Connection, journal: Journal, now_ns: int) -> None:
        self.ended = self.is_reset = False
        self.failure = ""
        self._steps = steps
        self._number = 0
        self._connection = connection
        self._journal = journal
        self._splitters = {direction: Splitter(direction) for direction in Direction}
        self._commands: deque[Entry] = deque()  # not compared yet
        self._deliveries: dict[tuple[str, str, bytes], bytes] = {}
        self._message_count = 0
        self._output: list[bytes] = []
        self._until_ns: int | None = None  # the end of a wait
        self._advance(now_ns)

    @property
    def is_complete(self) -> bool:
        """True after the last step."""
        return self._number == len(self._steps)

    @property
    def progress(self) -> str:
        """The present step, for a sentence: ``step 3 of 5, expect('FIN')``."""
        return f"step {self._number + 1} of {len(self._steps)}, {self._steps[self._number]}"

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _advance(self, now_ns: int) -> None:
        """Do all steps that are possible now."""
        while not self.ended and not self.is_complete and self._do(self._steps[self._number], now_ns):
            self._number += 1

    def _do(self, step: Step, now_ns: int) -> bool:
        """Do a step; return False if it has to wait, or failed."""
        match step:
            case Expect():
                return self._compare(step)
            case Send(data):
                self._send(data, now_ns)
            case Deliver():
                self._deliver(step, now_ns)
            case Wait(delay_ns):
                if self._until_ns is None:
                    self._until_ns = now_ns + delay_ns
                if now_ns < self._until_ns:
                    return False
                self._until_ns = None
            case Close(is_reset):
                self.ended = True
                self.is_reset = is_reset
        return True

    def _compare(self, step: Expect) -> bool:
        while self._commands:
            entry = self._commands.popleft()
            if step.accepts(entry):
                return True
            if entry.name not in ("MAGIC", "NOP"):
                self.failure = f"{self.progress}, got {' '.join(entry.text.split())} from {entry.client}"
                self.ended = True
                return False
        return False

    def _deliver(self, step: Deliver, now_ns: int) -> None:
        self._message_count += 1
        message_id = f"{self._message_count:016x}" if step.message_id is None else step.message_id
        timestamp_ns = now_ns if step.timestamp_ns is None else step.timestamp_ns
        self._send(encode_message(timestamp_ns, step.attempts, message_id.encode(), step.body), now_ns)

    def _send(self, data: bytes, now_ns: int) -> None:
        self._output.append(data)
        for item in self._record(Direction.TO_CLIENT, data, now_ns):
            if item.name == "MESSAGE":
                key = self._connection.topic, self._connection.channel, id_of(item.data)
                self._deliveries[key] = item.data

    def _record(self, direction: Direction, data: bytes, now_ns: int) -> list[Item]:
        items = self._splitters[direction].feed(data)
        if items:
            self._journal.record(now_ns, self._connection, direction, items)
        return items

    # ---- as a machine ------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """True while there are bytes to send, or the connection is to be closed."""
        return bool(self._output) or self.ended

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Process the bytes of one read."""
        if self.ended:
            return
        direction = Direction.TO_BROKER
        for item in self._record(direction, data, now_ns):
            describe(self._connection, item)
            if not self.is_complete:
                self._commands.append(read_entry(item, now_ns, 0.0, self._connection, direction, self._deliveries))
        self._advance(now_ns)

    def process_input(self, now_ns: int) -> None:
        """Do nothing: no input is left."""

    def receive_eof(self, now_ns: int) -> None:
        """End."""
        self.ended = True

    def events(self) -> tuple[()]:
        """Return nothing: the attributes have the result."""
        return ()

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them."""
        data = b"".join(self._output)
        self._output.clear()
        return data

    def next_deadline(self) -> int | None:
        """Return the end of a wait, in ns; None if there is none."""
        return None if self.ended else self._until_ns

    def handle_deadline(self, now_ns: int) -> None:
        """Continue after a wait."""
        self._advance(now_ns)
