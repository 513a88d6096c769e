from __future__ import annotations

import logging

import pytest

from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.log import ConsumerLog
from nsqkit.consumer.stats import BackoffStats


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "nsqkit.consumer")
    return ConsumerLog("orders", "billing")


def test_every_line_names_topic_and_channel(log, caplog):
    for state in BackoffState:
        log.backoff(BackoffStats(state=state, counter=2, wait=1.5, seconds_left=1.0))
    log.callback_failed("on_backoff", ValueError("no"))
    log.stop_timeout(3)
    log.messages_wait(100, 1.0, 80, 20)
    log.few_in_flight(5, 20)
    log.attempts_not_limited(3)
    for record in caplog.records:
        assert record.getMessage().startswith("[orders/billing] ")
        assert {"topic": "orders", "channel": "billing"}.items() <= vars(record).items()
    assert "backing off for 1.500 s, counter 2" in caplog.text
    assert "ValueError: no" in caplog.text


def test_a_warning_about_an_option_is_given_once_with_its_numbers(log, caplog):
    for _ in range(3):
        log.messages_wait(100, 1.0, 80, 20)
        log.few_in_flight(5, 20)
        log.attempts_not_limited(3)
    wait, few, attempts = caplog.messages
    assert "max_in_flight is 100" in wait
    assert "msg_timeout, 1 s: 20 messages were answered so far and 80 wait" in wait
    assert "max_in_flight is 5, less than the 20 messages" in few
    assert "max_attempts is 3, which only run and run_batches apply" in attempts
