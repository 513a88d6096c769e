"""The common part of all fuzz targets: the parts of an input, and the checks that every target makes.

An input of a target for a stream of bytes is a head and rounds:

    three lengths of slices, one byte each | one byte for the mode | round | MARK | round | MARK | …
    round    one byte for the action before it | content

``both_ways`` gives a target the content of each round in one piece, and once more cut into slices, and compares the
outcomes. If both of the lowest bits of the action are set, the content is repeated, so that short inputs reach the
limits of buffers.

``check`` runs a target on one input. An error of the target, an internal error in the log, and more calls of functions
than the length of the input allows are failures.
"""

from __future__ import annotations

import logging
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import cycle
from types import FrameType
from typing import Any, Final, Protocol

import attrs

MARK: Final = b"\xf5\xf5"
"""The end of a round; no encoder of nsqkit writes these bytes."""

SIZE_MAX: Final = 24 * 1024
"""Bytes of all rounds together, with repetitions; the rest is ignored."""

REPETITIONS: Final = 100

SLICES_MAX: Final = 1000
"""Slices of one content; they become longer if there would be more."""

COUNTED_EACH: Final = 8
"""One input of so many, chosen by its checksum, is run with counted calls, which takes twice as long."""

CALLS_MAX: Final = 5_000_000
"""Calls after which a run is stopped."""


class Target(Protocol):
    """A module of this folder.

    Attributes:
        SEEDS: inputs to begin with.
        WORDS: texts that the format has, for the fuzzer's dictionary.
        CALLS_PER_UNIT: calls of Python functions that a unit of work may take.
    """

    SEEDS: list[bytes]
    WORDS: list[bytes]
    CALLS_PER_UNIT: int

    def run(self, data: bytes) -> int:
        """Run on one input and return its units of work: bytes and slices. An assertion or another error is a bug."""


class TooMuchWork(BaseException):
    """A run takes too many calls; no code may catch this as a fault."""


@attrs.frozen
class Round:
    """One part of an input: a number for the target, and bytes for the code that it tests."""

    action: int
    content: bytes


@attrs.frozen
class Outcome:
    """The results of a run.

    Attributes:
        streams: results in their order, by name.
        state: other results, compared unless the input was refused.
        refused: the code has refused the input, and may have dropped some results before the error.
    """

    streams: Mapping[str, Any]
    state: object = None
    refused: bool = False


Cut = Callable[[bytes], list[bytes]]
Play = Callable[[int, list[Round], Cut], Outcome]


def pack(*contents: bytes, mode: int = 0, action: int = 0, lengths: Iterable[int] = (1, 7, 90)) -> bytes:
    """Return the input with these contents of its rounds, which have one action."""
    return bytes((*lengths, mode)) + MARK.join(bytes((action,)) + content for content in contents)


def unpack(data: bytes) -> tuple[bytes, int, list[Round]]:
    """Return the lengths of slices, the mode and the rounds of an input."""
    head, rounds, left = data[:4].ljust(4, b"\x00"), [], SIZE_MAX
    for part in data[4:].split(MARK):
        action = part[0] if part else 0
        content = (part[1:] * (REPETITIONS if action & 3 == 3 else 1))[:left]
        rounds.append(Round(action >> 2, content))
        left -= len(content)
    return head[:3], head[3], rounds


def slices(data: bytes, lengths: bytes) -> list[bytes]:
    """Cut bytes into slices with these lengths, again and again; a length of 0 counts as 256."""
    longest = len(data) // SLICES_MAX
    found: list[bytes] = []
    position = 0
    for length in cycle(lengths):
        if position >= len(data):
            return found
        end = position + max(length or 256, longest)
        found.append(data[position:end])
        position = end
    return found


def both_ways(data: bytes, play: Play) -> int:
    """Play an input in whole rounds and in slices; fail if the outcomes differ, and return the units of work."""
    lengths, mode, rounds = unpack(data)
    units = len(data)

    def cut(content: bytes) -> list[bytes]:
        nonlocal units
        found = slices(content, lengths)
        units += 2 * len(content) + len(found)
        return found

    whole = play(mode, rounds, lambda content: [content] if content else [])
    sliced = play(mode, rounds, cut)
    assert whole.refused == sliced.refused, _difference(whole, sliced)
    for name, results in whole.streams.items():
        others = sliced.streams[name]
        assert results == (others[: len(results)] if whole.refused else others), _difference(results, others)
    assert whole.refused or whole.state == sliced.state, _difference(whole.state, sliced.state)
    return units


def _difference(whole: object, sliced: object) -> str:
    texts = repr(whole), repr(sliced)
    begin = max(next((at for at, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0) - 200, 0)
    return "\n".join(("the outcome differs", *(f"…{text[begin : begin + 400]}" for text in texts)))


def check(target: Target, data: bytes) -> None:
    """Run a target on one input, and make the checks that all targets share."""
    counted = zlib.crc32(data) % COUNTED_EACH == 0
    with _no_internal_errors(), _counted_calls() if counted else nullcontext([0]) as calls:
        units = target.run(data)
    limit = 50_000 + target.CALLS_PER_UNIT * units
    assert calls[0] <= limit, f"{calls[0]} calls for {units} units of work; the limit is {limit}"


@contextmanager
def _counted_calls() -> Iterator[list[int]]:
    calls = [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[0] += 1
            if calls[0] > CALLS_MAX:
                raise TooMuchWork(f"more than {CALLS_MAX} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class _InternalErrors(logging.Filter):
    """Drops all records of a logger, and keeps those with an exception: the broker continues after its own errors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])
        return False


LOGGERS: Final = tuple(map(logging.getLogger, ("nsqkit.broker", "nsqkit.http", "nsqkit.lookupd", "nsqkit.transport")))


@contextmanager
def _no_internal_errors() -> Iterator[None]:
    errors = _InternalErrors()
    for logger in LOGGERS:
        logger.addFilter(errors)
    try:
        yield
    finally:
        for logger in LOGGERS:
            logger.removeFilter(errors)
    if errors.found:
        raise errors.found[0]
