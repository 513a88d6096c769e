"""Topics and channels before there is anything in them: nsqd's routes that create them.

The rule it guards: every nsqd is asked, since each has topics and channels of its own; and creating what is there
already changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon
from nsqkit.producer.arguments import topic_name
from nsqkit.wire.names import encode_channel

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.clock import Clock

ANSWER_SIZE_MAX: Final = 64 * 1024
"""Bytes that an answer may have: nsqd's are empty, ``OK``, or the word for a refusal."""


def daemons_at(
    addresses: Sequence[str],
    *,
    connect_timeout: float,
    request_timeout: float,
    tls_context: SSLContext | None = None,
    clock: Clock | None = None,
) -> list[Daemon]:
    """Return the nsqds at addresses that speak HTTP.

    Raises:
        OptionError: one that is no address.
    """
    if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
        raise OptionError(
            f'nsqd_http_addresses is {addresses!r}; allowed is a list such as ["127.0.0.1:4151"]'
        )
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
    """Have each nsqd create a topic, unless it has it.

    Raises:
        OptionError: no name of a topic, or there is no nsqd to ask.
        RequestFailed: an nsqd that cannot be asked, or refuses.
    """
    params = {"topic": topic_name(topic).decode()}
    for daemon in _some(daemons):
        await daemon.request("POST", "/topic/create", params)


async def create_channel(daemons: Sequence[Daemon], topic: str, channel: str) -> None:
    """Have each nsqd create a channel and its topic, unless it has them.

    Raises:
        OptionError: no name of a topic or a channel, or there is no nsqd to ask.
        RequestFailed: an nsqd that cannot be asked, or refuses.
    """
    params = {"topic": topic_name(topic).decode(), "channel": encode_channel(channel).decode()}
    await create_topic(daemons, topic)  # nsqd creates channels in topics that there are
    for daemon in daemons:
        await daemon.request("POST", "/channel/create", params)


def _some(daemons: Sequence[Daemon]) -> Sequence[Daemon]:
    if not daemons:
        raise OptionError("nsqd_http_addresses is empty; allowed are the addresses where nsqds speak HTTP")
    return daemons
