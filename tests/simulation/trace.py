"""The trace of a world, and the part of it that is about one message.

A line begins with the time and has one event: a step of the plan, a command (▶), a frame (◀), or the end of a life.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.simulation.plan import Plan
from tests.simulation.world import World

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


def trace(plan: Plan) -> tuple[list[str], Exception | None]:
    """Run a plan; return the lines of its trace, and the error with which it ended."""
    lines: list[str] = []
    try:
        with quiet():
            World(plan, trace=lines.append).run()
    except Exception as error:
        return [*lines, f"{type(error).__name__}: {error}"], error
    return lines, None


def about(lines: list[str], body: str) -> list[str]:
    """Return the lines about the message with this body: its publish, deliveries, and the commands with its ids."""
    ids = {found[2] for line in lines if (found := _DELIVERY.search(line)) and found[1] == body}
    exact = re.compile(rf"(?<![\w.-]){re.escape(body)}(?!\d)")
    chosen = [line for line in lines if exact.search(line) or any(message_id in line for message_id in ids)]
    return chosen if not lines or lines[-1] in chosen else [*chosen, lines[-1]]
