"""The layers between the raw client and its socket: TLS, snappy, deflate."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from nsqkit.wire.compression import Deflate, Snappy

if TYPE_CHECKING:
    from nsqkit.wire.transform import Transform

LAYERS = ("tls", "snappy", "deflate")
DEFLATE_LEVEL = 6

NEEDS = {"tls": "trustme", "snappy": "cramjam"}
"""The module that a layer needs."""


class Connection(Protocol):
    """The part of a socket that the raw client uses."""

    def fileno(self) -> int:
        """Return its file descriptor."""
        ...

    def sendall(self, data: bytes, /) -> object:
        """Send all of it."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def flags_for(layer: str, folder: str) -> list[str]:
    """Return the broker's flags; for TLS, write a certificate into ``folder``."""
    if layer != "tls":
        return []
    import trustme

    certificate = trustme.CA().issue_cert("127.0.0.1")
    chain, key = Path(folder, "chain.pem"), Path(folder, "key.pem")
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    return [f"--tls-cert={chain}", f"--tls-key={key}"]


def is_available(layer: str) -> bool:
    """Return whether the module that the layer needs is installed."""
    return find_spec(NEEDS.get(layer, "zlib")) is not None


def add_layer(connection: Connection, layer: str) -> Connection:
    """Return ``connection`` with the layer above it."""
    if layer == "tls":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(connection)  # type: ignore[arg-type]
    return _Compressed(connection, Snappy() if layer == "snappy" else Deflate(DEFLATE_LEVEL))


class _Compressed:
    def __init__(self, below: Connection, transform: Transform) -> None:
        self._below = below
        self._transform = transform
        self._rest = b""
        self.close = below.close
        self.fileno = below.fileno

    def sendall(self, data: bytes, /) -> None:
        self._below.sendall(self._transform.encode(data))

    def recv(self, size: int, /) -> bytes:
        while not self._rest:
            data = self._below.recv(size)
            if not data:
                return b""
            self._rest = b"".join(self._transform.decode(data))
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
