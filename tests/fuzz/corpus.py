"""The stored inputs of each target: ``corpus/NAME.txt`` has one a line, with Python's escapes for all but ASCII.

A file of lines instead of a file for each input: a few thousand small files would be slow to check out and to review.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

from tests.fuzz.harness import Target, TooMuchWork, check

FOLDER: Final = Path(__file__).parent / "corpus"

NAMES: Final = (
    *("broker_session", "broker_layers", "consumer_session", "producer_session", "lookupd_session", "lookup_peer"),
    *("http_server", "http_client", "documents", "disk_queue", "metadata", "option_texts", "auth_answer", "world_plan"),
)
"""The targets; each is a module of this folder."""


class CorpusError(Exception):
    """A target or a file of inputs that does not exist or cannot be one; the text is one sentence."""


def load_target(name: str) -> Target:
    """Return a target; raise CorpusError if there is none of this name."""
    if name not in NAMES:
        raise CorpusError(f"there is no target {name!r}; the targets are {', '.join(NAMES)}")
    return cast("Target", import_module(f"tests.fuzz.{name}"))


def stored_inputs(name: str, folder: Path | None = None) -> list[bytes]:
    """Return the inputs in the file of a target, none without a file; raise CorpusError if a line is no input."""
    path = (folder or FOLDER) / f"{name}.txt"
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(line.decode("unicode_escape").encode("latin-1"))
        except UnicodeError as error:
            raise CorpusError(f"line {number} of {path} is no input: {error}") from error
    return found


def store_inputs(name: str, inputs: Iterable[bytes], folder: Path | None = None) -> None:
    """Write the file of a target: these inputs, each once, the shortest first."""
    unique = sorted({data for data in inputs if data}, key=lambda data: (len(data), data))
    lines = [data.decode("latin-1").encode("unicode_escape") + b"\n" for data in unique]
    ((folder or FOLDER) / f"{name}.txt").write_bytes(b"".join(lines))


def minimised(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return the inputs that reach steps between two lines of nsqkit which no shorter input reaches.

    Inputs that fail are all kept.
    """
    seen: set[Any] = set()
    kept = []
    for data in sorted(set(inputs), key=len):
        steps = _steps(target, data)
        if steps is None or not steps <= seen:
            kept.append(data)
            seen |= steps or set()
    return kept


def _steps(target: Target, data: bytes) -> set[Any] | None:
    """Return the steps between two lines of one function that an input makes; None if it fails."""
    steps: set[Any] = set()

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if "/nsqkit/" not in frame.f_code.co_filename:
            return None
        last = 0

        def follow(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            steps.add((frame.f_code, last, frame.f_lineno))
            last = frame.f_lineno
            return follow

        return follow

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        check(target, data)
    except (Exception, TooMuchWork):
        return None
    finally:
        sys.settrace(before)
    return steps
