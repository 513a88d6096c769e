"""The functions of the user that are neither handlers nor ``giving_up``.

If such a function raises, or returns an invalid value, the error is logged with the name of its option, and the
consumer continues. ``on_backoff`` and ``on_connection`` return nothing. ``requeue_delay_policy`` and
``backoff_strategy`` return seconds; where they fail, the delay is the one that applies without them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.backoff import ExponentialStrategy
from nsqkit.errors import OptionError
from nsqkit.options.durations import plain_seconds

if TYPE_CHECKING:
    from nsqkit.consumer.backoff import Strategy
    from nsqkit.consumer.options import ConsumerOptions

logger = logging.getLogger("nsqkit.consumer")


def guard_callbacks(options: ConsumerOptions, log_fields: dict[str, object]) -> ConsumerOptions:
    """Return the options with functions that do not raise and return only seconds."""
    changes: dict[str, Any] = {}
    guarded = partial(_guarded, log_fields)
    policy, strategy = options.requeue_delay_policy, options.backoff_strategy
    if policy is not None:
        changes["requeue_delay_policy"] = guarded(
            policy, "requeue_delay_policy", lambda attempts: options.default_requeue_delay * attempts
        )
    if not isinstance(strategy, str):
        changes["backoff_strategy"] = guarded(
            strategy,
            "backoff_strategy",
            # The result is bounded by max_backoff_duration, which is at most an hour, so the exponent may be, too.
            lambda attempt: options.backoff_multiplier * 2.0 ** min(attempt, 64),
        )
    return attrs.evolve(options, **changes) if changes else options


def _guarded(
    log_fields: dict[str, object], function: Callable[[int], Any], name: str, default: Callable[[int], float]
) -> Callable[[int], float]:
    def guarded(attempt: int) -> float:
        try:
            return _seconds(function(attempt), name)
        except Exception:
            seconds = default(attempt)
            text = "%s failed for attempt %d; %g s instead"
            logger.exception(text, name, attempt, seconds, extra=log_fields)
            return seconds

    return guarded


def _seconds(value: object, name: str) -> float:
    seconds = plain_seconds(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise OptionError(f"{name} returned {value!r}; allowed is a number of seconds")
    return seconds


def requeue_delay(options: ConsumerOptions, attempts: int) -> float:
    """Return the seconds until the next delivery of a message that is requeued without a delay."""
    if options.requeue_delay_policy is None:
        return min(options.default_requeue_delay * attempts, options.max_requeue_delay)
    return _within(options.requeue_delay_policy(attempts), options.max_requeue_delay)


def strategy_of(options: ConsumerOptions) -> Strategy:
    """Return the function from the counter of backoff to the nanoseconds of the wait."""
    strategy = options.backoff_strategy
    if isinstance(strategy, str):
        return ExponentialStrategy(round(options.backoff_multiplier * NS_PER_S))
    return lambda attempt: round(_within(strategy(attempt), options.max_backoff_duration) * NS_PER_S)


def _within(seconds: float, maximum: float) -> float:
    return maximum if math.isnan(seconds) else min(max(seconds, 0.0), maximum)
