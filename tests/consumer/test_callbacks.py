from __future__ import annotations

import logging
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.callbacks import guard_callbacks
from nsqkit.consumer.options import ConsumerOptions
from tests.consumer.driven import DrivenConsumer

NONSENSE: list[Any] = [None, "10", True, math.nan, [], 1j]


def fail(attempt: int) -> float:
    raise ZeroDivisionError


def guarded(**options: Any) -> ConsumerOptions:
    return guard_callbacks(ConsumerOptions(**options), {"topic": "t", "channel": "c"})


@pytest.mark.parametrize("function", [fail, *(lambda attempt, value=value: value for value in NONSENSE)], ids=range(7))
def test_failing_function_is_logged_and_default_applies(function, caplog):
    options = guarded(requeue_delay_policy=function, backoff_strategy=function, default_requeue_delay=7)
    assert options.requeue_delay_policy is not None
    assert callable(options.backoff_strategy)
    assert options.requeue_delay_policy(3) == 21
    assert [options.backoff_strategy(attempt) for attempt in (1, 2, 3)] == [2, 4, 8]
    names = ["requeue_delay_policy", *["backoff_strategy"] * 3]
    for record, name in zip(caplog.records, names, strict=True):
        assert record.getMessage().startswith(f"{name} failed for attempt ")
        assert (record.levelno, vars(record)["topic"]) == (logging.ERROR, "t")
        assert record.exc_info is not None


@pytest.mark.parametrize("value", [0, 2.5, timedelta(seconds=2.5), math.inf, -1])
def test_seconds_are_accepted(value):
    options = guarded(requeue_delay_policy=lambda attempts: value)
    assert options.requeue_delay_policy is not None
    assert options.requeue_delay_policy(1) == (2.5 if isinstance(value, timedelta) else value)


def test_options_without_functions_are_unchanged():
    options = ConsumerOptions()
    assert guard_callbacks(options, {}) is options


@given(st.lists(st.sampled_from([fail, *(lambda attempt, value=value: value for value in NONSENSE)]), min_size=1))
def test_consumer_continues_when_functions_fail(functions):
    calls = iter(functions)

    def call(attempt: int) -> Any:
        return next(calls, fail)(attempt)

    consumer = DrivenConsumer(max_in_flight=3)
    consumer.subscription.options = guarded(requeue_delay_policy=call, default_requeue_delay=1)
    link = consumer.connect()
    for number in range(len(functions)):
        link.deliver(number)[0].requeue(backoff=False)
        assert f"REQ {number} 1000" in link.lines()
