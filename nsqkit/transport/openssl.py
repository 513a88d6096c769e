"""TLS by pyOpenSSL, which can accept any certificate from a client, as Python's ``ssl`` cannot.

nsqd does so with ``--tls-client-auth-policy=require``. The context has the interface of ``ssl.SSLContext`` that
``nsqkit.transport.tls`` uses, and errors are ``ssl.SSLError``. This module needs the extra ``server``; it is imported
only for that policy.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

from OpenSSL import SSL

T = TypeVar("T")

_READ_SIZE: Final = 64 * 1024
_OPTIONS: Final = SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION


class AnyCertificateContext:
    """The context of a server that requires some certificate from its clients and accepts any.

    The file of the server's certificate also has the intermediate ones; ``ciphers`` is OpenSSL's list.
    """

    def __init__(self, certificate_file: str, key_file: str, *, minimum_version: ssl.TLSVersion, ciphers: str) -> None:
        context = self._context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.use_certificate_chain_file(certificate_file)
        context.use_privatekey_file(key_file)
        context.set_min_proto_version(minimum_version.value)
        context.set_cipher_list(ciphers.encode())
        context.set_options(_OPTIONS)
        # Without a session id context OpenSSL refuses to resume a session with a certificate.
        context.set_session_id(b"nsqkit")
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _accept_any)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> _Engine:
        connection = SSL.Connection(self._context, None)
        connection.set_accept_state()
        return _Engine(connection, incoming, outgoing)


def _accept_any(*_: object) -> bool:
    return True


class _Engine:
    """The methods of ``ssl.SSLObject``."""

    def __init__(self, connection: SSL.Connection, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing

    def do_handshake(self) -> None:
        self._call(self._connection.do_handshake)

    def read(self, size: int, /) -> bytes:
        """Return all bytes, not only ``size``, since ``TLS`` cannot see how many are left in the connection."""
        return self._call(self._read_all)

    def pending(self) -> int:
        """Return the number of bytes to read; if there are none, 1 if the peer has closed TLS."""
        at_end = self._connection.get_shutdown() & SSL.RECEIVED_SHUTDOWN
        return self._connection.pending() or int(bool(at_end))

    def write(self, data: bytes, /) -> int:
        return self._call(self._connection.sendall, data)

    def unwrap(self) -> None:
        self._call(self._connection.shutdown)

    def version(self) -> str | None:
        return self._connection.get_protocol_version_name()

    def cipher(self) -> tuple[str, str, int] | None:
        name = self._connection.get_cipher_name()
        version = self._connection.get_cipher_version()
        bits = self._connection.get_cipher_bits()
        return (name, version, bits) if name and version and bits else None

    def selected_alpn_protocol(self) -> str | None:
        return self._connection.get_alpn_proto_negotiated().decode() or None

    def getpeercert(self) -> dict[str, Any]:
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return {}
        common_name = "2.5.4.3"
        names = [item.value for item in certificate.subject if item.oid.dotted_string == common_name]
        return {"subject": tuple((("commonName", name),) for name in names)}

    def _read_all(self) -> bytes:
        pieces = []
        try:
            while True:
                pieces.append(self._connection.recv(_READ_SIZE))
        except (SSL.WantReadError, SSL.ZeroReturnError):
            if not pieces:
                raise
        return b"".join(pieces)

    def _call(self, method: Callable[..., T], *args: object) -> T:
        if self._incoming.pending:
            self._connection.bio_write(self._incoming.read())
        try:
            return method(*args)
        except SSL.WantReadError as error:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "more data are needed") from error
        except SSL.ZeroReturnError as error:
            raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "TLS has been closed") from error
        except SSL.Error as error:
            raise _translated(error) from error
        finally:
            self._take_output()

    def _take_output(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(_READ_SIZE))
        except SSL.WantReadError:
            return


def _translated(error: SSL.Error) -> ssl.SSLError:
    """Return the error as Python's ``ssl`` would raise it."""
    queue = error.args[0] if error.args and isinstance(error.args[0], list) else []
    text = queue[0][2] if queue else str(error)
    translated = ssl.SSLError(ssl.SSL_ERROR_SSL, text)
    translated.reason = text.replace(" ", "_").upper()
    return translated
