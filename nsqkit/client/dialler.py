"""Dialling: a client's options of sockets, TLS and AUTH, applied to each of its connections.

Files are read and the TLS context is made when the client is made, so that an unusable option is an error before
anything is dialled. A ``Dial`` function, of a test or for a tunnel, can replace the connecting itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nsqkit.client.tls import client_context, make_tls
from nsqkit.transport.tcp import connect

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.client.options import ConnectionOptions
    from nsqkit.client.session import ClientSession

Dial: TypeAlias = "Callable[[str], Awaitable[ByteStream]]"
"""Connects to an address."""


class Dialler:
    """Makes the connections of one client; without ``dial`` by nsqkit's own function.

    Raises:
        OptionError: a file that the options name cannot be used.
    """

    def __init__(self, options: ConnectionOptions, dial: Dial | None = None) -> None:
        self.options = options
        self._dial = dial or partial(_connect, local_host=options.local_addr or None)
        self._context = client_context(options)

    async def __call__(self, address: str) -> ByteStream:
        """Return a connection to ``host:port``, or to the path of a Unix socket; raise OSError if there is none."""
        return await self._dial(address)

    def secure(self, session: ClientSession[Any], address: str) -> None:
        """Set what the handshake of ``session`` may need."""
        context, name = self._context, self.options.tls_server_name
        session.secure(
            make_tls=None if context is None else partial(make_tls, context, address, name),
            auth_secret=self.options.auth_secret,
        )


async def _connect(address: str, *, local_host: str | None) -> ByteStream:
    try:
        return await connect(address, local_host=local_host)
    except UnicodeError as error:
        raise OSError(f"{address!r} names no host") from error
