"""The search for secrets in everything that a world writes: traces, logs, and the texts of objects (invariant 22).

All secrets of a world contain ``MARK``. A plan has only their names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tests.simulation.broken import Broken

MARK: Final = "s3cret"


def secret_of(name: str) -> str:
    """Return the secret with this name."""
    return f"{MARK}-{name}"


def check_texts(*objects: object) -> None:
    """Check that no text of an object has a secret."""
    for each in objects:
        for text in (repr(each), str(each)):
            if MARK in text:
                raise Broken(22, f"a {type(each).__name__} shows a secret: {text}")


def checked(trace: Callable[[str], None] | None) -> Callable[[str], None]:
    """Return a function that also checks each line of a trace."""

    def write(line: str) -> None:
        if trace is not None:
            trace(line)
        check_texts(line)

    return write


class _Lines(logging.Handler):
    """Keeps the first line with a secret; an error would only end the command that has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.leak = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if not self.leak and MARK in line:
            self.leak = line


@contextmanager
def listening() -> Iterator[None]:
    """Check everything that nsqkit logs meanwhile, also the commands of clients."""
    logger, lines = logging.getLogger("nsqkit"), _Lines()
    before = logger.level, logger.propagate, logging.root.manager.disable
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        logging.disable(before[2])
    if lines.leak:
        raise Broken(22, f"the log shows a secret: {lines.leak}")
