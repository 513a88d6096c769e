"""A port that is kept: no other program gets it, and connections to it are refused.

A server keeps its ports while it is stopped. Without that, another test might get them, or a client that connects might
get the port for its own end, and would then be connected to itself.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import Final
from weakref import finalize

from nsqkit.transport.address import is_path, join_address, split_address

IS_SHARED: Final = sys.platform == "linux"
"""Whether a listener can be opened at a kept port: on Linux, if both sockets have SO_REUSEADDR and one listens."""


class KeptPort:
    """A bound socket that does not listen.

    Args:
        address: ``host:port``; port 0 for a free one. Nothing is kept for the path of a Unix socket, or an empty text.

    Attributes:
        address: the same, with the number of the port.

    Raises:
        OptionError: the address is invalid.
        OSError: another program listens there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._close: finalize[[int], KeptPort] | None = None
        if address and not is_path(address):
            self._bind()

    def keep(self) -> None:
        """Keep the port again. Another program may have taken it, which the next listener then reports."""
        if self._close is None and self.address and not is_path(self.address):
            with suppress(OSError):
                self._bind()

    def release(self) -> None:
        """Let a listener be opened at the port; except on Linux, another program can get it first."""
        if self._close is not None and not IS_SHARED:
            self._close()
            self._close = None

    def _bind(self) -> None:
        host, port = split_address(self.address)
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, place = found[0]
            with socket.socket(family, kind, protocol) as bound:
                if os.name == "posix":  # connections of the last listener may remain
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(place)
                self.address = join_address(host, bound.getsockname()[1])
                self._close = finalize(self, socket.close, bound.detach())
        except OSError as error:
            raise OSError(error.errno, f"listen ({self.address}) failed - {error.strerror or error}") from error
