"""Addresses, as NSQ's flags and options write them: ``host:port``, ``[::1]:port``.

The rule it guards: an address that cannot be one is refused by a sentence with the address in it, before a socket
is touched.
"""

from __future__ import annotations

from nsqkit.errors import OptionError

PORT_MAX = 65535


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
