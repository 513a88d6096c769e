"""The loop that accepts connections while a server runs.

An error in accepting or serving one connection is logged and does not end the others.
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

    from nsqkit.clock import Clock
    from nsqkit.transport.tcp import Listener

ACCEPT_PAUSE_NS: Final = 50_000_000
"""The time between a failure to accept and the next attempt."""


async def accept(
    listener: Listener,
    handler: Callable[[Any], Awaitable[None]],
    tasks: TaskGroup,
    logger: logging.Logger,
    clock: Clock,
) -> None:
    """Accept connections until cancelled, and call ``handler`` with the stream of each, in a task in ``tasks``.

    Errors of the handler are logged, and so are failures to accept, mostly because too many files are open.
    """

    async def serve(stream: ByteStream) -> None:
        try:
            await handler(stream)
        except Exception:  # a bug that one client triggers must not end the other connections
            logger.exception("[%s] - internal error", remote_address(stream))
            await anyio.aclose_forcefully(stream)

    while True:
        try:
            await listener.serve(serve, tasks)
        except* OSError as errors:
            logger.error("accept failed - %s", errors.exceptions[0])
        await clock.wait_until(clock.now_ns() + ACCEPT_PAUSE_NS)


def remote_address(stream: ByteStream) -> str:
    """Return ``host:port`` of the peer, or ``:0`` if the connection is lost already.

    For a Unix socket it is the path, ``@`` and a name if the socket has no file, and ``@`` alone if it has no name.
    """
    address: tuple[str, int] | str | bytes = stream.extra(SocketAttribute.remote_address, ("", 0))
    if isinstance(address, str | bytes):
        return path_of(address)
    host, port = address[:2]
    # A socket for both families shows IPv4 clients as IPv6 ones.
    return join_address(host.removeprefix("::ffff:"), port)
