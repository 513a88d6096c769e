"""The interface of an nsqd behind the proxy of a test server: in this process, in its own, or at an address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.broker.server import Nsqd
    from nsqkit.testing.ports import KeptPort


class Backend(Protocol):
    """An nsqd that can be started and stopped any number of times. All methods run in the loop thread."""

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; empty without HTTP."""
        ...

    @property
    def nsqd(self) -> Nsqd | None:
        """The broker, where it runs in this process."""
        ...

    async def start(self, tcp_address: str, http_port: KeptPort, *, keep_data: bool) -> None:
        """Return when it answers.

        Args:
            tcp_address: that of the proxy, to be announced to nsqlookupd.
            http_port: where it listens for HTTP clients.
            keep_data: begin with the topics, channels and messages of the last stop.

        Raises:
            OptionError: an option cannot be used.
            OSError: an address or a file cannot be used.
        """
        ...

    async def connect(self, name: str) -> ByteStream:
        """Return a new connection for the client of this address; raise OSError or Closed if that is not possible."""
        ...

    async def stop(self) -> None:
        """End it; the last bytes for its clients are sent."""
        ...

    async def kill(self) -> None:
        """End it as a crash would: nothing is sent or saved."""
        ...
