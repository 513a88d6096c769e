"""What a layer between a session and its socket is: a transform of bytes into bytes.

The rule it guards: an upgrade after IDENTIFY is a transform inside the session, not another stream outside it. The
session receives what the socket gave and returns what the socket is to send, in whatever layers were agreed on; the
pump does not know, and the bytes that came after the last plain command simply go through the transform.

How to read it: ``Transform`` is every layer; ``SecureTransform`` is the one that has something to tell of the peer.
The layers themselves: ``nsqkit.wire.compression`` and, since it is not pure, ``nsqkit.transport.tls``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Transform(Protocol):
    """Both directions of one layer. Layers stack: what the outer one decodes, the inner one is given to decode."""

    @property
    def has_output(self) -> bool:
        """True while the layer has bytes of its own to send, which ``encode(b"")`` returns."""
        ...

    @property
    def at_end(self) -> bool:
        """True once the peer has said in this layer that it sends nothing more."""
        ...

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of what was received, in pieces.

        Raises:
            ProtocolError: the peer does not speak this layer. What the layer still owes it is there to be sent.
        """
        ...

    def encode(self, data: bytes) -> bytes:
        """Return what to send for these plain bytes, so that the peer can read all of them as soon as it may.

        A layer that is not ready yet keeps them, and gives them out with a later call.
        """
        ...


class SecureTransform(Transform, Protocol):
    """TLS: a layer that is ready after a handshake. What it tells of the peer is empty before."""

    @property
    def is_ready(self) -> bool:
        """True once the handshake is over."""
        ...

    @property
    def version(self) -> str:
        """The protocol, as nsqd names it: ``TLS1.3``."""
        ...

    @property
    def cipher_suite(self) -> str:
        """The cipher suite, as nsqd names it: in Go's words, or ``Unknown`` and its number."""
        ...

    @property
    def negotiated_protocol(self) -> str:
        """What ALPN has agreed on, empty if nothing."""
        ...

    @property
    def common_name(self) -> str:
        """Of the subject of the peer's certificate, empty without one."""
        ...
