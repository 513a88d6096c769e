"""The log lines of a consumer: backoff, messages that wait too long, and options without effect.

Each line names topic and channel in its text, and has them as fields.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nsqkit.consumer.backoff import BackoffState

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from nsqkit.consumer.stats import BackoffStats

logger = logging.getLogger("nsqkit.consumer")


class TopicLog(logging.LoggerAdapter[logging.Logger]):
    """Adds topic and channel to log lines: to the text, and as fields."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        fields = self.extra or {}
        kwargs["extra"] = {**fields, **kwargs.get("extra", {})}
        return f"[{fields.get('topic')}/{fields.get('channel')}] {msg}", kwargs


class ConsumerLog:
    """The log lines of one consumer.

    ``fields`` are ``topic`` and ``channel``, for the ``extra`` of log lines; ``warned`` has the warnings that were
    logged, of those that are logged once.
    """

    def __init__(self, topic: str, channel: str) -> None:
        self.fields: dict[str, object] = {"topic": topic, "channel": channel}
        self._name = f"{topic}/{channel}"
        self.warned: set[str] = set()

    def named(self, name: str) -> TopicLog:
        """Return the logger of that name, which adds topic and channel."""
        return TopicLog(logging.getLogger(name), self.fields)

    def backoff(self, backoff: BackoffStats) -> None:
        """Log a change of the backoff's state."""
        name, wait, counter = self._name, backoff.wait, backoff.counter
        extra = {**self.fields, "backoff_state": backoff.state.value, "backoff_counter": counter}
        if backoff.state is BackoffState.WAITING:
            logger.warning("[%s] backing off for %.3f s, counter %d", name, wait, counter, extra=extra)
        elif backoff.state is BackoffState.PROBING:
            logger.info("[%s] backoff: waiting for a test message", name, extra=extra)
        else:
            logger.info("[%s] backoff is over", name, extra=extra)

    def callback_failed(self, option: str, error: Exception) -> None:
        logger.error("[%s] %s failed", self._name, option, exc_info=error, extra=self.fields)

    def stop_timeout(self, count: int) -> None:
        """Warn that handlers have not returned before the time limit of the stop."""
        logger.warning(
            "[%s] the stop's time is over, and %d messages are not answered: handlers are cancelled where that is "
            "possible, and the messages requeued",
            self._name,
            count,
            extra=self.fields,
        )

    def messages_wait(self, max_in_flight: int, msg_timeout: float, waiting: int, answered: int) -> None:
        """Warn once that messages wait for handlers longer than half of their timeout."""
        self._warn_once(
            "messages_wait",
            f"max_in_flight is {max_in_flight}, more than the handlers answer within msg_timeout, {msg_timeout:g} s: "
            f"{answered} messages were answered so far and {waiting} wait. They are touched or requeued. Lower "
            "max_in_flight, or raise concurrency or msg_timeout",
        )

    def few_in_flight(self, max_in_flight: int, count: int) -> None:
        """Warn once that max_in_flight is too low for the concurrency of the handlers."""
        self._warn_once(
            "few_in_flight",
            f"max_in_flight is {max_in_flight}, less than the {count} messages that the handlers can take at a time; "
            "allowed is more, or leave it out",
        )

    def attempts_not_limited(self, max_attempts: int) -> None:
        """Warn once that max_attempts has no effect."""
        self._warn_once(
            "attempts_not_limited",
            f"max_attempts is {max_attempts}, which only run and run_batches apply: look at message.attempts",
        )

    def _warn_once(self, kind: str, sentence: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            logger.warning("[%s] %s", self._name, sentence, extra=self.fields)
