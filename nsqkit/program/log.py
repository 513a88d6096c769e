"""The log of the program, on stderr, in the form of nsqd's.

    [nsqd] 2026/11/21 09:00:00.000000 INFO: TCP: listening on 127.0.0.1:4150

The rule it guards: programs that start nsqd read its ports from these lines. So each line says what nsqd's says, and
is written whole and at once.

How to read it: ``log_handler`` puts the three parts together: a stream, a form, and a level that may change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TextIO

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
"""Python's levels for the words of ``--log-level``."""

_LEVEL_NAMES: Final = {logging.CRITICAL: "FATAL"}


class LogFormatter(logging.Formatter):
    """The form of a line.

    Args:
        prefix: what each line begins with.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, without the traceback that may follow it."""
        time = self.formatTime(record, "%Y/%m/%d %H:%M:%S")
        microseconds = int(record.created % 1 * 1_000_000)
        level = _LEVEL_NAMES.get(record.levelno, record.levelname)
        return f"{self._prefix}{time}.{microseconds:06d} {level}: {escape(record.message)}"


def escape(message: str) -> str:
    """Return a message with each character that is not printable written as an escape sequence.

    Clients choose parts of a message. Line ends among them would make lines of their own, and control characters would
    act on the terminal of a reader.
    """
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


def log_handler(stream: TextIO, prefix: str, level: Callable[[], str]) -> logging.Handler:
    """Return what writes the log.

    Args:
        stream: where to.
        prefix: what each line begins with.
        level: returns the word for the least level that is written; asked for each line.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(prefix))
    handler.addFilter(lambda record: record.levelno >= LEVELS[level()])
    return handler
