"""The number of messages that may be in flight on a connection, so that their bodies stay within a number of bytes.

RDY counts messages, and the size of a message is not known before it arrives. So the limit begins low, rises at most
fourfold with each receipt, and follows the mean of the sizes.
"""

from __future__ import annotations

from typing import Final

import attrs

FIRST: Final = 16
"""The limit before the first message: 16 MiB, if each has nsqd's default ``--max-msg-size``."""

RISE_MAX: Final = 4

MEAN_MESSAGES: Final = 64
"""Messages after which a new size has replaced the old one in the mean."""


@attrs.define
class InFlightBytes:
    """The limit of one connection.

    Attributes:
        bytes_max: bytes of bodies that should be in flight at most.
        messages_max: messages that may be in flight, however small they are.
        limit: messages that may be in flight now.
    """

    bytes_max: int
    messages_max: int
    limit: int = attrs.field(init=False)
    _mean: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = min(FIRST, self.messages_max)

    def receive(self, count: int, size: int) -> None:
        """Adapt the limit to messages that have arrived; small changes are not worth a command.

        Args:
            count: of the messages, at least 1.
            size: bytes of their bodies.
        """
        mean = size / count
        if self._mean is not None:
            mean = self._mean + (mean - self._mean) * min(1.0, count / MEAN_MESSAGES)
        self._mean = mean
        wanted = min(self.messages_max, RISE_MAX * self.limit, max(1, int(self.bytes_max / max(mean, 1.0))))
        if wanted == self.messages_max or abs(wanted - self.limit) * 4 >= self.limit:
            self.limit = wanted
