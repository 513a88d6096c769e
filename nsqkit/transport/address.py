"""Addresses, as NSQ's flags and options write them: ``host:port``, ``[::1]:port``.

The rule it guards: an address that cannot be one is refused by a sentence with the address in it, before a socket
is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from anyio.abc import SocketStream
    from anyio.streams.stapled import MultiListener

PORT_MAX = 65535
_ANY_HOST = ("", "0.0.0.0")
"""Hosts that mean every interface; Go's listener takes IPv4 and IPv6 for both of them."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        OptionError: not ``host:port`` with a port of 0 to 65535.
    """
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise OptionError(f"address {address!r} is not host:port with a port of 0 to {PORT_MAX}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def listen(address: str) -> MultiListener[SocketStream]:
    """Return a listener at ``address``; port 0 takes a free one.

    Raises:
        OptionError: the address cannot be one.
        OSError: it cannot be had; the text says which, and why.
    """
    host, port = split_address(address)
    local_host = None if host in _ANY_HOST else host
    try:
        return await anyio.create_tcp_listener(local_host=local_host, local_port=port)
    except OSError as error:
        raise OSError(error.errno, f"listen ({address}) failed - {error.strerror or error}") from error
