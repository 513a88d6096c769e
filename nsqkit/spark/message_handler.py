"""A handler of chunks that calls a function with each message.

A handler that raises requeues its whole chunk and fails its task. So one message that no attempt can process would fail
every run, and would take the others of its chunk to the limit of ``max_attempts`` with it. ``per_message`` requeues
only the message whose call raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs

from nsqkit.options.fields import seconds
from nsqkit.spark.drainer import FINISH, Ack, Handler, Requeue
from nsqkit.spark.schema import MessageRow

logger = logging.getLogger("nsqkit.spark")


def per_message(
    fn: Callable[[MessageRow], object], *, default_requeue_delay: float = 90.0, max_requeue_delay: float = 900.0
) -> Handler:
    """Return a handler for ``foreach_partition`` that calls a function with each message.

    A message is finished when the function returns, and requeued when it raises. With ``max_attempts`` and
    ``dead_letter_topic`` of the spec, it is published there after so many attempts.

    Args:
        fn: called on the executors.
        default_requeue_delay: seconds until the next delivery of a message, times its attempts; 90.
        max_requeue_delay: the longest of these delays; 900.

    Raises:
        OptionError: a delay that cannot be used.
    """
    return _PerMessage(fn, default_requeue_delay, max_requeue_delay)


@attrs.frozen
class _PerMessage:
    fn: Callable[[MessageRow], object]
    default_requeue_delay: float = seconds(90.0, 0.0, 3600.0)
    max_requeue_delay: float = seconds(900.0, 0.0, 3600.0)

    def __call__(self, rows: Sequence[MessageRow]) -> list[Ack]:
        return [self._process(row) for row in rows]

    def _process(self, row: MessageRow) -> Ack:
        try:
            self.fn(row)
        except Exception as error:  # it is the user's, so its class is not known
            delay = min(self.default_requeue_delay * row.attempts, self.max_requeue_delay)
            logger.warning(
                "[%s] message %s of %s is requeued for %g seconds; attempt %d failed: %r",
                *(row.topic, row.id, row.nsqd_address, delay, row.attempts, error),
            )
            return Requeue(delay)
        return FINISH
