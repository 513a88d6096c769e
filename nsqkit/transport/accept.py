"""Accepting connections for as long as a server runs, and telling where they come from.

The rule it guards: that one connection could not be accepted, or served, is not the end of the others.

How to read it: ``accept`` is a loop around ``Listener.serve``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketAttribute

from nsqkit.transport.address import join_address, path_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.transport.tcp import Listener

ACCEPT_PAUSE: Final = 0.05
"""Seconds before connections are accepted again after that has failed."""


async def accept(
    listener: Listener,
    handler: Callable[[Any], Awaitable[None]],
    tasks: TaskGroup,
    logger: logging.Logger,
) -> None:
    """Serve all who come, until cancelled.

    Args:
        listener: where they come to.
        handler: called with the stream of each, in a task of its own; what it raises is logged.
        tasks: what those tasks belong to.
        logger: told why one could not be accepted, mostly because too many files are open.
    """

    async def serve(stream: ByteStream) -> None:
        try:
            await handler(stream)
        except Exception:  # an error of ours in what one client does must not be the end of all the others
            logger.exception("[%s] - internal error", remote_address(stream))
            await anyio.aclose_forcefully(stream)

    while True:
        try:
            await listener.serve(serve, tasks)
        except* OSError as errors:
            logger.error("accept failed - %s", errors.exceptions[0])
        await anyio.sleep(ACCEPT_PAUSE)


def remote_address(stream: ByteStream) -> str:
    """Return ``host:port`` of who is at the other end, ``:0`` of one who has gone already.

    Of a Unix socket it is its path, ``@`` and a name if it has no file, and ``@`` alone if it has no name.
    """
    address: tuple[str, int] | str | bytes = stream.extra(SocketAttribute.remote_address, ("", 0))
    if isinstance(address, str | bytes):
        return path_of(address)
    host, port = address[:2]
    # A socket for both families shows IPv4 clients as IPv6 ones.
    return join_address(host.removeprefix("::ffff:"), port)
