"""A history: the acts of clients, the frames that they received, and the faults of brokers, as events in their order.

A file has one JSON object a line: first the setup of the run, then its events. Fields with their default are left out.
One process records all events, so the order of the lines is the order in which they happened to it.

    subscribe   a connection may get messages of a channel: ``connection``, ``broker``, ``channel``, ``life``, and its
                RDY as ``count``; it never changes
    invoke      a publish of ``body`` to ``broker`` begins; ``ok``, ``fail`` or ``info`` (unknown) end it
    deliver     ``connection`` receives ``body`` with ``id`` and ``attempt``
    finish      ``connection`` sends FIN for ``id``; ``requeue`` is REQ
    refuse      the broker refuses the FIN or REQ of ``id``
    confirm     the broker has processed the first ``count`` FINs of ``connection``
    fault, heal a fault of ``broker`` begins and has ended, with its name as ``fault``; ``heal`` of a fault that ended
                the process means that it runs again
    late        the recording process did nothing for ``count`` milliseconds before
    died        a process ended that no fault had ended
    calm        all faults have ended, and nothing more is published
    left        ``count`` messages are left in ``channel`` of ``broker``, as the broker reports
    end         the run is over
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

import attrs
from attrs.validators import instance_of

VERSION: Final = 1

KINDS: Final = frozenset(
    {"subscribe", "invoke", "ok", "fail", "info", "deliver", "finish", "requeue", "refuse", "confirm"}
    | {"fault", "heal", "late", "died", "calm", "left", "end"}
)


class HistoryError(ValueError):
    """The lines are no history: one cannot be read, or contradicts the ones before it."""


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class Setup:
    """The parameters of a run.

    Attributes:
        promise: the name of the brokers' promise; see ``promises.py``.
        brokers: their number.
        channels: the names of the topic's channels, which exist from the beginning.
        msg_timeout: seconds until a delivered message times out.
        sync_timeout: seconds after which finished messages are recorded on disk.
        slack: seconds by which the recording process may be late.
        seed: of the faults.
        command: how a broker is started.
    """

    promise: str = attrs.field(validator=instance_of(str))
    brokers: int = attrs.field(default=1, validator=instance_of(int))
    channels: tuple[str, ...] = attrs.field(default=("a",), converter=_strings)
    msg_timeout: float = attrs.field(default=3.0, validator=instance_of((int, float)))
    sync_timeout: float = attrs.field(default=0.5, validator=instance_of((int, float)))
    slack: float = attrs.field(default=1.0, validator=instance_of((int, float)))
    seed: int = 0
    command: str = ""


@attrs.frozen
class Event:
    """One line of a history; the module names the fields of each kind.

    Attributes:
        kind: one of ``KINDS``.
        time: seconds since the start of the run.
        life: how often the broker of a connection had been started before.
        text: for readers.
    """

    kind: str
    time: float
    broker: int = -1
    connection: int = -1
    channel: str = ""
    body: str = ""
    id: str = ""
    attempt: int = 0
    life: int = 0
    count: int = 0
    fault: str = ""
    text: str = ""


_DEFAULTS: Final = {field.name: field.default for field in attrs.fields(Event)}
_TYPES: Final[dict[str, Any]] = {"kind": str, "time": (int, float)} | {
    name: type(default) for name, default in _DEFAULTS.items() if default is not attrs.NOTHING
}


def setup_line(setup: Setup) -> str:
    """Return the first line of a file."""
    return json.dumps({"version": VERSION} | attrs.asdict(setup)) + "\n"


def event_line(event: Event) -> str:
    """Return the line of an event."""
    fields = ((name, getattr(event, name)) for name in _DEFAULTS)
    return json.dumps({name: value for name, value in fields if value != _DEFAULTS[name]}) + "\n"


def read_history(lines: Iterable[str]) -> tuple[Setup, Iterator[Event]]:
    """Return the setup, and an iterator that reads the events.

    Raises:
        HistoryError: a line is none; the iterator raises it as well.
    """
    numbered = enumerate(lines, 1)
    first = next((line for _, line in numbered), "")
    document = _document(first, 1)
    if document.pop("version", None) != VERSION:
        raise HistoryError(f"line 1 is not the setup of a history of version {VERSION}")
    try:
        setup = Setup(**document)
    except TypeError as error:
        raise HistoryError(f"line 1 is no setup: {error}") from error
    return setup, (_event(line, number) for number, line in numbered)


def _event(line: str, number: int) -> Event:
    document = _document(line, number)
    for name, value in document.items():
        if name not in _TYPES or not isinstance(value, _TYPES[name]):
            raise HistoryError(f"line {number}: an event has no {name} {value!r}")
    if document.get("kind") not in KINDS or "time" not in document:
        raise HistoryError(f"line {number}: an event has a time, and its kind is one of {', '.join(sorted(KINDS))}")
    return Event(**document)


def _document(line: str, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise HistoryError(f"line {number} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise HistoryError(f"line {number} is not a JSON object")
    return document


class Recorder:
    """Writes a history to a file.

    Args:
        file: it, open for text.
        setup: its first line.
    """

    def __init__(self, file: TextIO, setup: Setup) -> None:
        self._file = file
        file.write(setup_line(setup))

    def record(self, event: Event) -> None:
        """Write an event."""
        self._file.write(event_line(event))
