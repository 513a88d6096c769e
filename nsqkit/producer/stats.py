"""What a producer tells of itself.

The rule it guards: a picture of one moment, as plain values that stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from nsqkit.wire.auth import AuthAnswer


@attrs.frozen(kw_only=True)
class NsqdStats:
    """One nsqd of the pool.

    Attributes:
        address: where it is.
        is_connected: True while there is a connection that was greeted.
        message_count: messages that it has acknowledged.
        refused_count: publishes that it has refused.
        lost_count: publishes that were sent and never answered.
        outstanding_count: commands that it has not answered yet, and publishes that linger.
        error: why there is no connection at present; None if there is one, or never was.
        auth: what it has answered to AUTH; None if it has asked for none.
    """

    address: str
    is_connected: bool
    message_count: int
    refused_count: int
    lost_count: int
    outstanding_count: int
    error: Exception | None
    auth: AuthAnswer | None = None


@attrs.frozen(kw_only=True)
class ProducerStats:
    """A producer.

    Attributes:
        nsqds: each nsqd, in the order in which the producer was given them.
        outstanding_bytes: what counts towards ``max_outstanding_bytes``; 0 if that has no limit.
        waiting_count: publishes that wait for a connection, or for ``max_outstanding_bytes``.
    """

    nsqds: tuple[NsqdStats, ...]
    outstanding_bytes: int
    waiting_count: int

    @property
    def is_connected(self) -> bool:
        """True while there is a connection to at least one nsqd."""
        return any(nsqd.is_connected for nsqd in self.nsqds)

    @property
    def message_count(self) -> int:
        """Messages that were acknowledged."""
        return sum(nsqd.message_count for nsqd in self.nsqds)

    @property
    def refused_count(self) -> int:
        """Publishes that were refused."""
        return sum(nsqd.refused_count for nsqd in self.nsqds)

    @property
    def lost_count(self) -> int:
        """Publishes that were sent and never answered."""
        return sum(nsqd.lost_count for nsqd in self.nsqds)
