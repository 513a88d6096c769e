from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from nsqkit import OptionError
from nsqkit.spark.drainer import FINISH, Requeue
from nsqkit.spark.message_handler import per_message
from nsqkit.spark.schema import MessageRow


def row(number: int, attempts: int = 1) -> MessageRow:
    return MessageRow("127.0.0.1:4150", "t", f"{number:016x}", 1_700_000_000_000_000_000, attempts, b"%d" % number)


def refuse_odd(row: MessageRow) -> str:
    if int(row.body) % 2:
        raise ValueError(f"{row.body!r} is odd")
    return "a result"


def test_each_message_is_finished_or_requeued_by_its_call(caplog: pytest.LogCaptureFixture):
    acks = per_message(refuse_odd, default_requeue_delay=5.0)([row(0), row(1), row(2)])
    assert acks == [FINISH, Requeue(5.0), FINISH]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("nsqkit.spark", logging.WARNING)
    assert record.getMessage() == (
        "[t] message 0000000000000001 of 127.0.0.1:4150 is requeued for 5 seconds; "
        "attempt 1 failed: ValueError(\"b'1' is odd\")"
    )


@pytest.mark.parametrize(("attempts", "delay"), [(1, 90.0), (3, 270.0), (10, 900.0), (60, 900.0)])
def test_the_delay_grows_with_the_attempts(attempts: int, delay: float):
    assert per_message(refuse_odd)([row(1, attempts)]) == [Requeue(delay)]


def test_what_ends_a_program_is_raised():
    def stop(row: MessageRow) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        per_message(stop)([row(1)])


def test_the_handler_pickles():
    handler = pickle.loads(pickle.dumps(per_message(refuse_odd)))
    assert handler([row(0)]) == [FINISH]


@pytest.mark.parametrize("options", [{"default_requeue_delay": -1}, {"max_requeue_delay": "1 s"}])
def test_a_delay_that_cannot_be_used_is_refused(options: dict[str, Any]):
    (name,) = options
    with pytest.raises(OptionError, match=name):
        per_message(refuse_odd, **options)
