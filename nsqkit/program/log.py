"""The log of the programs, on stderr, in nsqd's format.

    [nsqd] 2026/11/21 09:00:00.000000 INFO: TCP: listening on 127.0.0.1:4150

Programs that start nsqd read its ports from these lines, so the words are nsqd's, and each line is written at once.
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
"""Python's level for each value of ``--log-level``."""

_LEVEL_NAMES: Final = {logging.CRITICAL: "FATAL"}


class LogFormatter(logging.Formatter):
    """The format of a line, which begins with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, without a traceback."""
        time = self.formatTime(record, "%Y/%m/%d %H:%M:%S")
        microseconds = int(record.created % 1 * 1_000_000)
        level = _LEVEL_NAMES.get(record.levelno, record.levelname)
        return f"{self._prefix}{time}.{microseconds:06d} {level}: {escape(record.message)}"


def escape(message: str) -> str:
    """Return a message with an escape sequence for each character that is not printable.

    Parts of a message come from clients. Their newlines could forge log lines, and their control characters could
    control a reader's terminal.
    """
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


def log_handler(stream: TextIO, prefix: str, level: Callable[[], str]) -> logging.Handler:
    """Return the handler that writes the log to ``stream``, with ``prefix`` before each line.

    For each line ``level`` is called; it returns the word for the lowest level that is written.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(prefix))
    handler.addFilter(lambda record: record.levelno >= LEVELS[level()])
    return handler
