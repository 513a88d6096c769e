"""A running broker, as its HTTP routes and the clients of external services use it.

The protocol lies below them so that they do not import the server, which imports them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock


class RunningBroker(Protocol):
    """The part of ``nsqkit.broker.server.Nsqd`` that they use; its attributes are described there."""

    broker: Broker
    options: BrokerOptions
    tcp_address: str
    http_address: str
    https_address: str
    start_time_ns: int

    @property
    def clock(self) -> Clock:
        """The time that is passed to the engine."""

    @property
    def is_running(self) -> bool:
        """Whether it accepts messages: False from the beginning of a stop on."""

    @property
    def statsd_prefix(self) -> str:
        """The beginning of all keys that are sent to statsd."""

    def process_changes(self) -> None:
        """Deliver messages, wake writers and start requests after a change to ``broker`` or ``options``."""

    async def save(self) -> None:
        """Write the names of the present topics and channels to disk, if there is a data path."""

    async def committed(self, first_ticket: int | None = None) -> bool:
        """Wait until everything published so far is as safe as ``durability`` demands.

        Args:
            first_ticket: that of the group commit when the first of the messages in question was put; None for now.

        Returns:
            False if a commit since then has failed.
        """
