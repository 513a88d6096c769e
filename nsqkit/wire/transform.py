"""The interface of a layer between a session and its socket: a transform of bytes into bytes.

An upgrade after IDENTIFY adds a transform inside the session; the pump and its stream do not change. Bytes that came
after the last plain command pass through the transform. The layers are in ``nsqkit.wire.compression`` and, since TLS is
not pure, in ``nsqkit.transport.tls``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Transform(Protocol):
    """Both directions of one layer. The output of an outer layer's ``decode`` is the input of the inner one's."""

    @property
    def has_output(self) -> bool:
        """True while the layer itself has bytes to send, which ``encode(b"")`` returns."""

    @property
    def at_end(self) -> bool:
        """True once the peer has ended its stream in this layer."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of received bytes, in pieces.

        Raises:
            ProtocolError: the bytes are not valid in this layer. ``encode`` may still return bytes, such as an alert.
        """

    def encode(self, data: bytes) -> bytes:
        """Return the bytes to send for these plain bytes, flushed; a layer that is not ready returns them later."""


class SecureTransform(Transform, Protocol):
    """TLS: a layer that is ready after a handshake. The texts are empty before."""

    @property
    def is_ready(self) -> bool: ...
    @property
    def version(self) -> str:
        """The protocol, as nsqd names it: ``TLS1.0`` to ``TLS1.3``."""

    @property
    def cipher_suite(self) -> str:
        """The cipher suite, as nsqd names it: Go's name, or ``Unknown`` and its number."""

    @property
    def negotiated_protocol(self) -> str:
        """The protocol that ALPN selected, empty if none."""

    @property
    def common_name(self) -> str:
        """The last common name in the subject of the peer's certificate, empty without a certificate."""
