from __future__ import annotations

import io
import logging
import time

import pytest

from nsqkit.broker.core.options import OPTIONS
from nsqkit.program.log import LEVELS, log_handler


@pytest.fixture
def log():
    """A logger that writes records of ``log.level`` and higher to ``log.stream``."""

    class Log:
        stream = io.StringIO()
        level = "debug"

        def write(self, level: int, text: str, *, created: float = 0.0, exc_info=None):
            record = logging.LogRecord("x", level, "", 0, text, (), exc_info)
            record.created = created
            handler.handle(record)
            return self.stream.getvalue()

    log = Log()
    handler = log_handler(log.stream, "[nsqd] ", lambda: log.level)
    return log


def test_a_line_has_nsqds_format(log):
    moment = time.mktime((2026, 11, 21, 9, 5, 7, 0, 0, -1)) + 0.000_25
    line = log.write(logging.INFO, "TCP: listening on 127.0.0.1:4150", created=moment)
    assert line == "[nsqd] 2026/11/21 09:05:07.000250 INFO: TCP: listening on 127.0.0.1:4150\n"


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (logging.DEBUG, "DEBUG"),
        (logging.INFO, "INFO"),
        (logging.WARNING, "WARNING"),
        (logging.ERROR, "ERROR"),
        (logging.CRITICAL, "FATAL"),
    ],
)
def test_levels_have_nsqds_names(level, name, log):
    assert f".000000 {name}: text\n" in log.write(level, "text")


def test_the_level_may_change_at_any_time(log):
    log.level = "warn"
    assert not log.write(logging.INFO, "one")
    assert log.write(logging.WARNING, "two")
    log.level = "fatal"
    assert "three" not in log.write(logging.ERROR, "three")
    log.level = "info"
    assert "four" in log.write(logging.INFO, "four")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u202e\u2028\udcff", r"\u202e\u2028\udcff"),
        ("41.003\xb5s \xe9 \\", "41.003\xb5s \xe9 \\"),
    ],
)
def test_client_text_cannot_forge_lines_or_control_a_terminal(text, shown, log):
    assert log.write(logging.INFO, text).endswith(f" INFO: {shown}\n")


def test_a_traceback_follows_its_line(log):
    error = ValueError("why")
    text = log.write(logging.ERROR, "panic", exc_info=(ValueError, error, None))
    assert text.endswith(" ERROR: panic\nValueError: why\n")


def test_every_word_of_the_option_has_a_level():
    assert set(LEVELS) == set(OPTIONS["log_level"].choices)
