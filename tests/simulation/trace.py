"""The trace of a world, and the part of it that is about one message.

A line begins with the time and has one event: a step of the plan, a command (▶), a frame (◀), or the end of a life.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final, TypeVar

import attrs

from tests.simulation.broken import Broken
from tests.simulation.plan import Plan
from tests.simulation.sizes import run_plan

T = TypeVar("T")

_DELIVERY: Final = re.compile(r"◀ \S+: b'([^'.]+\.\d+\.\d+)[.]*' attempt \d+ id b'([^']+)'")


@contextmanager
def quiet() -> Iterator[None]:
    """Log nothing: brokers report the faults that the worlds make."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


@attrs.frozen
class Failure:
    """The end of a world that failed.

    Attributes:
        kind: the invariant that is broken, or the class of another error and the function that raised it.
        sentence: the invariant and the facts.
    """

    kind: str
    sentence: str


def failure_in(run: Callable[[T], object], world: T) -> Failure | None:
    """Run a world; return its failure, None if there is none."""
    try:
        with quiet():
            run(world)
    except Broken as broken:
        return Failure(f"invariant {broken.number}", str(broken))
    except Exception as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        return Failure(f"{type(error).__name__} in {frame.f_code.co_qualname}", _sentence(error))
    return None


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"


def trace_of(run: Callable[[Callable[[str], None]], None]) -> tuple[list[str], Exception | None]:
    """Run a world, which calls a function with each line; return the lines, and the error with which it ended."""
    lines: list[str] = []
    try:
        with quiet():
            run(lines.append)
    except Exception as error:
        return [*lines, _sentence(error)], error
    return lines, None


def trace(plan: Plan) -> tuple[list[str], Exception | None]:
    """Run a plan; return the lines of its trace, and the error with which it ended."""
    return trace_of(lambda tell: run_plan(plan, tell))


def about(lines: list[str], body: str) -> list[str]:
    """Return the lines about the message with this body: its publish, deliveries, and the commands with its ids."""
    ids = {found[2] for line in lines if (found := _DELIVERY.search(line)) and found[1] == body}
    exact = re.compile(rf"(?<![\w.-]){re.escape(body)}(?!\d)")
    chosen = [line for line in lines if exact.search(line) or any(message_id in line for message_id in ids)]
    return chosen if not lines or lines[-1] in chosen else [*chosen, lines[-1]]
