"""The statistics of a producer: values of one moment, which do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from nsqkit.wire.auth import AuthAnswer


@attrs.frozen(kw_only=True)
class NsqdStats:
    """One nsqd of the pool.

    Attributes:
        address: its address.
        is_connected: True while there is a connection, after its handshake.
        message_count: messages that it has acknowledged.
        refused_count: publishes that it has refused.
        lost_count: publishes that were sent and never answered.
        outstanding_count: commands that it has not answered yet, and publishes that linger.
        error: why there is no connection now; None if there is one, or never was.
        auth: its answer to AUTH; None if it requires none.
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
        nsqds: each nsqd, in the order in which the producer got them.
        outstanding_bytes: bytes that count towards ``max_outstanding_bytes``; 0 without that limit.
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
