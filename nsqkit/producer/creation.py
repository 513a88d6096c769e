"""Creating topics and channels over nsqd's HTTP interface.

Each nsqd has its own topics and channels, so a request goes to all of them. To create one that exists changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon
from nsqkit.producer.arguments import topic_name
from nsqkit.transport.address import shown_value
from nsqkit.wire.names import encode_channel

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.clock import Clock

ANSWER_SIZE_MAX: Final = 64 * 1024
"""The limit of an answer, in bytes: nsqd's are empty, ``OK``, or the code of an error."""


def daemons_at(
    addresses: Sequence[str],
    *,
    connect_timeout: float,
    request_timeout: float,
    tls_context: SSLContext | None = None,
    clock: Clock | None = None,
) -> list[Daemon]:
    """Return the nsqds at their HTTP addresses; raise OptionError if one is not an address."""
    if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
        shown = shown_value(addresses)
        raise OptionError(f'nsqd_http_addresses is {shown}; allowed is a list such as ["127.0.0.1:4151"]')
    return [
        Daemon(
            address,
            tls_context=tls_context,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            body_max=ANSWER_SIZE_MAX,
            clock=clock,
        )
        for address in addresses
    ]


async def create_topic(daemons: Sequence[Daemon], topic: str) -> None:
    """Create a topic on each nsqd that does not have it.

    Raises:
        OptionError: a wrong name, or there is no nsqd.
        RequestFailed: an nsqd cannot be reached, or refuses.
    """
    params = {"topic": topic_name(topic).decode()}
    if not daemons:
        raise OptionError("nsqd_http_addresses is empty; allowed are the addresses where nsqds speak HTTP")
    for daemon in daemons:
        await daemon.request("POST", "/topic/create", params)


async def create_channel(daemons: Sequence[Daemon], topic: str, channel: str) -> None:
    """Create a channel and its topic on each nsqd that does not have them; the errors are those of ``create_topic``."""
    params = {"topic": topic_name(topic).decode(), "channel": encode_channel(channel).decode()}
    await create_topic(daemons, topic)  # nsqd creates channels only in topics that exist
    for daemon in daemons:
        await daemon.request("POST", "/channel/create", params)
