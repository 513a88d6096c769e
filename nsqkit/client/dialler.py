"""How a client reaches nsqds: what its options say about sockets, TLS and AUTH, for all of its connections.

The rule it guards: what can be found wrong before anything is dialled, is: files are read and rules made once, when the
client is made.

How to read it: a ``Dialler`` is called with an address and returns a stream; ``secure`` tells the session that is to
speak over it what its greeting may need. In place of the dialling a test, or a tunnel, may put its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from nsqkit.client.tls import client_context, make_tls
from nsqkit.transport.tcp import connect

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.client.options import ConnectionOptions
    from nsqkit.wire.transform import SecureTransform

Dial: TypeAlias = "Callable[[str], Awaitable[ByteStream]]"
"""How an address becomes a stream."""


class Securable(Protocol):
    """A session, as far as its greeting goes."""

    def secure(self, *, make_tls: Callable[[], SecureTransform] | None, auth_secret: str) -> None:
        """Say what the greeting may need."""
        ...


class Dialler:
    """Dials for one client.

    Args:
        options: the client's.
        dial: what to do instead of connecting to the address; None for that.

    Attributes:
        write_timeout: seconds in which a broker has to take something.
        read_timeout: seconds of silence after which it counts as dead.
        on_connection: whom to tell of connections; None for nobody.
        end_on_permanent_error: whether an address is dialled no more after a permanent error.

    Raises:
        OptionError: a file that the options name cannot be used.
    """

    def __init__(self, options: ConnectionOptions, dial: Dial | None = None) -> None:
        self.write_timeout = options.write_timeout
        self.read_timeout = options.read_timeout
        self.on_connection = options.on_connection
        self.end_on_permanent_error = options.end_on_permanent_error
        self._dial = dial or partial(_connect, local_host=options.local_addr or None)
        self._context = client_context(options)
        self._server_name = options.tls_server_name
        self._auth_secret = options.auth_secret

    async def __call__(self, address: str) -> ByteStream:
        """Return a connection to ``host:port``, or to the path of a Unix socket.

        Raises:
            OSError: nobody answers there, or there is no such host.
        """
        return await self._dial(address)

    def secure(self, session: Securable, address: str) -> None:
        """Tell a session what its greeting may need."""
        context = self._context
        session.secure(
            make_tls=None if context is None else partial(make_tls, context, address, self._server_name),
            auth_secret=self._auth_secret,
        )


async def _connect(address: str, *, local_host: str | None) -> ByteStream:
    try:
        return await connect(address, local_host=local_host)
    except UnicodeError as error:
        raise OSError(f"{address!r} names no host") from error
