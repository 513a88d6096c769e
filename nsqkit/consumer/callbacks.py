"""How functions of the user are called that are neither handlers nor ``giving_up``.

One rule holds for all of them: what a function of the user raises, or returns against its contract, is logged as an
error with the function's option, and the consumer goes on. ``on_backoff`` and ``on_connection`` return nothing, so
nothing else follows. ``requeue_delay_policy`` and ``backoff_strategy`` return seconds; where they fail, the delay is
the one that holds without them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import plain_seconds

if TYPE_CHECKING:
    from nsqkit.consumer.options import ConsumerOptions

logger = logging.getLogger("nsqkit.consumer")


def guard_callbacks(options: ConsumerOptions, log_fields: dict[str, object]) -> ConsumerOptions:
    """Return the options with functions that neither raise nor return anything but seconds.

    Args:
        options: the consumer's options.
        log_fields: fields of each log line.
    """
    changes: dict[str, Any] = {}
    policy, strategy = options.requeue_delay_policy, options.backoff_strategy
    if policy is not None:
        changes["requeue_delay_policy"] = _guarded(
            policy,
            "requeue_delay_policy",
            lambda attempts: options.default_requeue_delay * attempts,
            log_fields,
        )
    if not isinstance(strategy, str):
        changes["backoff_strategy"] = _guarded(
            strategy,
            "backoff_strategy",
            # The exponent is bounded as the result is: max_backoff_duration is at most an hour.
            lambda attempt: options.backoff_multiplier * 2.0 ** min(attempt, 64),
            log_fields,
        )
    return attrs.evolve(options, **changes) if changes else options


def _guarded(
    function: Callable[[int], Any], name: str, default: Callable[[int], float], log_fields: dict[str, object]
) -> Callable[[int], float]:
    def guarded(attempt: int) -> float:
        try:
            return _seconds(function(attempt), name)
        except Exception:
            seconds = default(attempt)
            logger.exception(
                "%s failed for attempt %d; %g s instead", name, attempt, seconds, extra=log_fields
            )
            return seconds

    return guarded


def _seconds(value: object, name: str) -> float:
    seconds = plain_seconds(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise OptionError(f"{name} returned {value!r}; allowed is a number of seconds")
    return seconds
