"""TLS as a transform of bytes into bytes, for either end of a connection.

It does no I/O: OpenSSL works between two buffers in memory. Plain bytes to send wait here until the handshake is done,
also that of a renegotiation. ``encode`` raises nothing: ``decode`` raises its error, and so ends the connection. An
alert for the peer is output as well, also after the layer has failed. The properties describe the connection in nsqd's
words. A ``Context`` is an ``ssl.SSLContext`` or ``nsqkit.transport.openssl``'s, and makes the OpenSSL object.
"""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Protocol

from nsqkit.errors import ProtocolError

RECORD_SIZE_MAX: Final = 16 * 1024
"""Limit of the plain bytes in a TLS record, which is also what one read of OpenSSL returns at most."""

HEAD_LENGTH: Final = 5
"""Bytes of a record's header: type, version, length."""

_ALERT: Final = 21
_HANDSHAKE: Final = 22

_VERSIONS: Final = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}

# nsqd has names for these and shows all others by number (nsqd/client_v2.go, GetCipherSuite).
_CIPHER_SUITES: Final = {
    "RC4-SHA": "TLS_RSA_WITH_RC4_128_SHA",
    "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-RC4-SHA": "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-RC4-SHA": "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
}

TLS_VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
"""The versions, by their names in options."""

# OpenSSL's reasons for which Go has other texts.
_REASONS: Final = {"PEER_DID_NOT_RETURN_A_CERTIFICATE": "client didn't provide a certificate"}


class Engine(Protocol):
    """The methods of ``ssl.SSLObject`` that are used here; they raise ``ssl.SSLError`` as it does."""

    def do_handshake(self) -> None: ...
    def read(self, size: int, /) -> bytes: ...
    def pending(self) -> int: ...
    def write(self, data: bytes, /) -> int: ...
    def unwrap(self) -> None: ...
    def version(self) -> str | None: ...
    def cipher(self) -> tuple[str, str, int] | None: ...
    def selected_alpn_protocol(self) -> str | None: ...
    def getpeercert(self) -> Any: ...


class Context(Protocol):
    """Makes the engine of each connection, between two buffers, as ``ssl.SSLContext`` does."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> Engine: ...


class TLS:
    """One connection's TLS.

    Args:
        server_hostname: the server's name, for a client; None for a server.

    Attributes:
        is_ready: True once the handshake is done.
        at_end: True once the peer has closed TLS.
        head: for a server, the bytes received of the header of the first record.
    """

    __slots__ = (
        *("_engine", "_error", "_incoming", "_is_server", "_outgoing", "_waiting"),
        *("at_end", "head", "is_ready"),
    )

    def __init__(self, context: Context, *, server_hostname: str | None = None) -> None:
        self.is_ready = False
        self.at_end = False
        self.head = b""
        self._is_server = server_hostname is None
        self._error: ssl.SSLError | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._waiting: list[bytes] = []
        self._engine = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=server_hostname
        )
        if not self._is_server:
            self._shake_hands()

    # ---- the layer -----------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """True while there are records to send: of the handshake, an alert, or bytes that waited for the handshake."""
        return self._outgoing.pending > 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of the received records, in one piece.

        Raises:
            ProtocolError: the data are not TLS, the handshake failed, a record is damaged, or ``encode`` has failed.
        """
        if self._is_server and len(self.head) < HEAD_LENGTH:
            self._check_head(data)
        self._incoming.write(data)
        if not self.is_ready and not self._shake_hands():
            return
        plain = self._read()
        if self._waiting:
            self._write_waiting()
        if plain:
            yield plain
        if self._error is not None:
            raise self._failure(self._error)

    def encode(self, data: bytes) -> bytes:
        """Return the records to send: those of ``data``, and the layer's own."""
        if not self.is_ready or self._waiting:
            self._waiting.append(data)
        else:
            self._write(data)
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the last records to send, with the one that closes TLS."""
        if self._is_open:
            try:
                self._engine.unwrap()
            except ssl.SSLError:  # the peer has not closed TLS yet
                pass
        return self._outgoing.read()

    # ---- the result of the handshake, in nsqd's words --------------------------------------------------------------

    @property
    def version(self) -> str:
        name = self._engine.version() if self._is_open else None
        return _VERSIONS.get(name, name) if name else ""

    @property
    def cipher_suite(self) -> str:
        cipher = self._engine.cipher() if self._is_open else None
        if cipher is None:
            return ""
        name = cipher[0]
        return _CIPHER_SUITES.get(name) or f"Unknown {_cipher_numbers().get(name, 0)}"

    @property
    def negotiated_protocol(self) -> str:
        return (self._engine.selected_alpn_protocol() if self._is_open else None) or ""

    @property
    def common_name(self) -> str:
        certificate = self._engine.getpeercert() if self._is_open else None
        subject = certificate.get("subject", ()) if certificate else ()
        names = [value for part in subject for key, value in part if key == "commonName"]
        return names[-1] if names else ""

    @property
    def _is_open(self) -> bool:
        return self.is_ready and self._error is None

    def _check_head(self, data: bytes) -> None:
        """Refuse data that are not TLS, without an alert, which the peer could not decode."""
        self.head += data[: HEAD_LENGTH - len(self.head)]
        if len(self.head) == HEAD_LENGTH and (self.head[0] not in (_ALERT, _HANDSHAKE) or self.head[1] >= 0x10):
            raise ProtocolError("tls: first record does not look like a TLS handshake")

    def _shake_hands(self) -> bool:
        """Continue the handshake; return whether it is done."""
        try:
            self._engine.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._failure(error) from error
        self.is_ready = True
        self._write_waiting()
        return True

    def _write_waiting(self) -> None:
        waiting = b"".join(self._waiting)
        self._waiting.clear()
        self._write(waiting)

    def _write(self, data: bytes) -> None:
        if not data or self._error is not None:
            return
        try:
            self._engine.write(data)
        except ssl.SSLWantReadError:  # the peer renegotiates
            self._waiting.append(data)
        except ssl.SSLError as error:
            self._error = error

    def _read(self) -> bytes:
        """Return all plain bytes; an error after them is kept unless there is one."""
        pieces = []
        read, incoming, pending = self._engine.read, self._incoming, self._engine.pending
        try:
            while not self.at_end:
                piece = read(RECORD_SIZE_MAX)
                self.at_end = not piece
                pieces.append(piece)
                if not incoming.pending and not pending():
                    break  # another read would raise an exception, which is slow
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # raised instead of an empty piece if this side has closed TLS, too
            self.at_end = True
        except ssl.SSLError as error:
            self._error = self._error or error
        return b"".join(pieces)

    def _failure(self, error: ssl.SSLError) -> ProtocolError:
        if isinstance(error, ssl.SSLCertVerificationError):
            whose = "client" if self._is_server else "server"
            return ProtocolError(f"tls: failed to verify {whose} certificate: {error.verify_message}")
        reason = error.reason or str(error)
        return ProtocolError(f"tls: {_REASONS.get(reason) or reason.replace('_', ' ').lower()}")


def set_minimum_version(context: ssl.SSLContext, minimum_version: ssl.TLSVersion) -> None:
    with warnings.catch_warnings():
        # The warning is about an old version, which the user has chosen by an option.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = minimum_version


@cache
def _cipher_numbers() -> dict[str, int]:
    """Return the number of every cipher suite that OpenSSL has, by OpenSSL's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {cipher["name"]: cipher["id"] & 0xFFFF for cipher in context.get_ciphers()}
