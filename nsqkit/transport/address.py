"""Addresses in NSQ's flags and options: ``host:port``, ``[::1]:port``, or the path of a Unix socket.

An invalid address is an ``OptionError`` before a socket is made. Where a path is allowed, everything that does not have
the form of ``host:port`` is a path, as in nsqd (internal/util). Where a URL is allowed, errors and logs show it without
its secrets.
"""

from __future__ import annotations

import re

from nsqkit.errors import OptionError

PORT_MAX = 65535

_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*):[^:\[\]]*")
"""The strings that Go's net.SplitHostPort accepts."""

_SCHEME = re.compile(r"^(\w+:)?//")
_USER = re.compile(r"^.+@", re.DOTALL)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port; raise OptionError if it is not ``host:port`` with a port of 0 to 65535."""
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    zeros, digits = port[:-5], port[-5:]  # Python may refuse to convert thousands of digits
    if not colon or not port.isascii() or not port.isdigit() or zeros.strip("0") or int(digits) > PORT_MAX:
        raise OptionError(f"address {address!r} is not host:port with a port of 0 to {PORT_MAX}")
    return host.removeprefix("[").removesuffix("]"), int(digits)


def is_path(address: str) -> bool:
    """Return whether an address to listen on is the path of a Unix socket."""
    return address != "" and _HOST_AND_PORT.fullmatch(address) is None


def is_socket_path(address: str) -> bool:
    """Return whether an address to connect to is the path of a Unix socket: it contains ``/`` or begins with ``@``.

    This is stricter than ``is_path``: a host without a port is no path.
    """
    return "/" in address or address.startswith("@")


def path_of(name: str | bytes) -> str:
    """Return the address of a Unix socket from the kernel's name for it, which is bytes if it has no file."""
    if isinstance(name, str):
        return name or "@"
    return "@" + name[1:].decode(errors="surrogateescape")


def port_of(address: str) -> int:
    """Return the port of an address to listen on, as nsqd reports it: -1 for a Unix socket, 0 for no address."""
    if is_path(address):
        return -1
    return split_address(address)[1] if address else 0


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown_url(url: str) -> str:
    """Return a URL, or an address without a scheme, without user, password and query.

    A password may have a ``/``, ``?`` or ``#`` that should have been escaped. If an ``@`` follows a ``?``, either the
    password has the ``?`` or the query has the ``@``, so only the scheme is shown.
    """
    rest = _SCHEME.sub("", url)
    before, _, query = rest.partition("?")
    return url.removesuffix(rest) + ("..." if "@" in query else _USER.sub("", before))


def shown_value(value: object) -> str:
    """Return the ``repr`` of a refused address or list of addresses, without secrets of URLs."""
    if isinstance(value, str):
        return repr(shown_url(value))
    shown = repr(value)
    return f"a {type(value).__name__}" if "@" in shown or "?" in shown else shown


def url_fault(url: str, error: ValueError) -> str:
    """Return why ``urllib.parse`` has refused a URL; its own text may quote a part of a password."""
    if "@" not in url:
        return str(error)
    return "the host or the port is wrong, or user or password has one of / ? # [ ] that is not escaped"
