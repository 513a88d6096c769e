"""TCP and Unix sockets: connect and listen, with the fastest stream for the running event loop.

On asyncio's loops a connection is an ``AsyncioStream``, on trio it is anyio's. Both are byte streams with the same
attributes for addresses, so callers do not depend on the loop.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.stapled import MultiListener

from nsqkit.transport.address import is_path, is_socket_path, join_address, split_address
from nsqkit.transport.asyncio_stream import AsyncioStream, asyncio_loop, make_stream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable

    from anyio.abc import ByteStream, SocketStream, TaskGroup

BACKLOG = 65_535
"""Connections that may wait to be accepted; the system's own limit (somaxconn) may be lower."""

ATTEMPT_DELAY = 0.25
"""Seconds after which the next address of a host is tried, too, as in anyio and RFC 8305."""

ACCEPT_COUNT_MAX = 1000
"""Connections that asyncio's loops accept in one turn; uvloop accepts all that wait."""

_ANY_HOST = ("", "0.0.0.0")
"""Hosts that stand for every interface; Go's listener accepts IPv4 and IPv6 for both of them."""


async def connect(address: str, *, local_host: str | None = None) -> ByteStream:
    """Return a connection to an address.

    Args:
        address: ``host:port``, or the path of a Unix socket (``is_socket_path``).
        local_host: IP address of this machine to connect from, where ``address`` has a host; None for any.

    Raises:
        OptionError: the address is neither.
        OSError: no connection could be made.
    """
    if is_socket_path(address):
        return await connect_path(address)
    return await connect_tcp(*split_address(address), local_host=local_host)


async def connect_tcp(host: str, port: int, *, local_host: str | None = None) -> ByteStream:
    """Return a connection to ``host``, at the first of its addresses, IPv6 or IPv4, that accepts one.

    An address that does not answer holds up the next one for ``ATTEMPT_DELAY``. The arguments and errors are those of
    ``connect``.
    """
    loop = asyncio_loop()
    if loop is None:
        return await anyio.connect_tcp(host, port, local_host=local_host)
    if _is_ip_address(host):
        local_addr = None if local_host is None else (local_host, 0)
        _, stream = await loop.create_connection(make_stream, host, port, local_addr=local_addr)
        return stream
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    sock = await _first_connected(loop, dict.fromkeys(found), local_host)
    return await _make_stream(loop.create_connection, sock)


async def connect_path(path: str) -> ByteStream:
    """Return a connection to a Unix socket; a path that begins with ``@`` is a name without a file, as in Go."""
    loop = asyncio_loop()
    if loop is None:
        return await anyio.connect_unix(_kernel_path(path))
    sock = await _connected(loop, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), _kernel_path(path))
    return await _make_stream(loop.create_unix_connection, sock)


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _first_connected(
    loop: asyncio.AbstractEventLoop, found: Iterable[tuple[Any, ...]], local_host: str | None
) -> socket.socket:
    """Return a socket that is connected to one of the addresses of a host, as ``getaddrinfo`` returns them."""
    errors: list[OSError] = []
    winner: socket.socket | None = None

    async def attempt(entry: tuple[Any, ...], ended: anyio.Event) -> None:
        nonlocal winner
        family, kind, protocol, _, address = entry
        try:
            sock = await _connected(loop, socket.socket(family, kind, protocol), address, local_host)
        except OSError as error:
            errors.append(error)
            ended.set()
            return
        if winner is None:
            winner = sock
            tasks.cancel_scope.cancel()
        else:  # both connected in the same turn of the event loop
            sock.close()

    try:
        async with anyio.create_task_group() as tasks:
            for entry in found:
                ended = anyio.Event()
                tasks.start_soon(attempt, entry, ended)
                with anyio.move_on_after(ATTEMPT_DELAY):
                    await ended.wait()
    except BaseException:
        if winner is not None:
            winner.close()
        raise
    if winner is None:
        raise errors[0] if len(errors) == 1 else OSError(f"no address accepts: {', '.join(map(str, errors))}")
    return winner


async def _connected(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any, local_host: str | None = None
) -> socket.socket:
    try:
        sock.setblocking(False)
        if local_host is not None:
            sock.bind((local_host, 0))
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _make_stream(create: Callable[..., Awaitable[tuple[Any, AsyncioStream]]], sock: socket.socket) -> ByteStream:
    try:
        _, stream = await create(make_stream, sock=sock)
    except BaseException:
        sock.close()
        raise
    return stream


def reset_on_close(stream: ByteStream) -> None:
    """Have a TCP connection end with a reset when it is closed: the peer loses what it has not read."""
    sock = stream.extra(SocketAttribute.raw_socket, None)
    with suppress(OSError):  # it is closed already
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def listen(address: str, *, paths: bool = True) -> Listener:
    """Return a listener on ``address``; port 0 stands for a free one.

    Args:
        address: ``host:port``, or the path of a Unix socket, which must not exist yet and is removed at the end.
            A path that begins with ``@`` is a name without a file, as in Go.
        paths: False to refuse paths.

    Raises:
        OptionError: the address is invalid.
        OSError: it cannot be used; the text has the address and the reason.
    """
    try:
        if paths and is_path(address):
            return Listener(await _listen_at_path(address), path=address)
        host, port = split_address(address)
        local_host = None if host in _ANY_HOST else host
        return Listener(await anyio.create_tcp_listener(local_host=local_host, local_port=port))
    except OSError as error:
        raise OSError(error.errno, f"listen ({address}) failed - {error.strerror or error}") from error


async def _listen_at_path(path: str) -> MultiListener[SocketStream]:
    if not path.startswith("@") and _exists(path):
        # anyio would remove an existing socket, which may belong to a running server.
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return MultiListener([await anyio.create_unix_listener(_kernel_path(path))])


def _kernel_path(path: str) -> str:
    return "\0" + path[1:] if path.startswith("@") else path


def _exists(path: str) -> bool:
    return os.path.lexists(path)


class Listener:
    """Listening sockets, for ``async with``; clients use ``address``, which has the port or path of the first one."""

    def __init__(self, sockets: MultiListener[SocketStream], *, path: str = "") -> None:
        self._sockets = sockets
        self._path = path
        self._streams: WeakSet[ByteStream] = WeakSet()
        self.address = path or join_address(*sockets.extra(SocketAttribute.local_address)[:2])

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port; for TCP only."""
        return split_address(self.address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):  # a cancelled task would close the first socket only
            await self._sockets.aclose()
        if self._path and not self._path.startswith("@"):
            with suppress(FileNotFoundError):  # some event loops have removed it
                os.unlink(self._path)

    def reset_on_close(self) -> None:
        """Have all connections that were accepted end with a reset when they are closed."""
        for stream in list(self._streams):
            reset_on_close(stream)

    async def serve(self, handler: Callable[[Any], Awaitable[None]], tasks: TaskGroup) -> None:
        """Accept connections, and start ``handler`` in ``tasks`` with the stream of each.

        Raises:
            OSError: on trio, a connection could not be accepted, mostly because too many files are open.
        """
        loop = asyncio_loop()
        if loop is None:

            async def note(stream: ByteStream) -> None:
                self._streams.add(stream)
                await handler(stream)

            await self._sockets.serve(note, tasks)
            return
        unhandled: dict[AsyncioStream, None] = {}  # accepted, but no handler has started
        accepted, queue = anyio.create_memory_object_stream[AsyncioStream](math.inf)

        def enqueue(stream: AsyncioStream) -> None:
            try:
                accepted.send_nowait(stream)
            except anyio.ClosedResourceError:  # the listener was closed meanwhile
                stream.abort()
            else:
                unhandled[stream] = None

        async def handle(stream: AsyncioStream) -> None:
            del unhandled[stream]
            self._streams.add(stream)
            await handler(stream)

        with accepted, queue, ExitStack() as stack:
            stack.callback(_abort_all, unhandled)
            for listener in self._sockets.listeners:
                sock = stack.enter_context(listener.extra(SocketAttribute.raw_socket).dup())
                create_server = loop.create_unix_server if self._path else loop.create_server
                server = await create_server(
                    partial(make_stream, enqueue), sock=sock, backlog=ACCEPT_COUNT_MAX, start_serving=False
                )
                stack.callback(server.close)
                await server.start_serving()
                sock.listen(BACKLOG)
            async for stream in queue:
                tasks.start_soon(handle, stream)


def _abort_all(unhandled: Iterable[AsyncioStream]) -> None:
    # A task that is cancelled before its first step cannot close its stream.
    for stream in unhandled:
        stream.abort()
