"""A server of TLS 1.2 that renegotiates, by pyOpenSSL, since Python's ``ssl`` cannot."""

from __future__ import annotations

from contextlib import suppress

from OpenSSL import SSL

from nsqkit.transport.tls import RECORD_SIZE_MAX, TLS, Context
from tests.certificates import HOST, server_certificate


class RenegotiatingServer:
    """The server and its client, after the handshake."""

    def __init__(self, context: Context) -> None:
        ours = SSL.Context(SSL.TLS_SERVER_METHOD)
        ours.set_max_proto_version(SSL.TLS1_2_VERSION)
        server_certificate().configure_cert(ours)
        self._connection = SSL.Connection(ours, None)
        self._connection.set_accept_state()
        self.client = TLS(context, server_hostname=HOST)
        self.exchange(self.client.encode(b""))

    def renegotiate(self) -> bytes:
        """Begin to renegotiate, and return the record for the client."""
        self._connection.renegotiate()
        with suppress(SSL.WantReadError):
            self._connection.do_handshake()
        return self._connection.bio_read(RECORD_SIZE_MAX)

    def exchange(self, data: bytes) -> bytes:
        """Exchange the output of both sides, first ``data`` of the client; return the plain bytes from it."""
        received = b""
        while data:
            self._connection.bio_write(data)
            with suppress(SSL.WantReadError):
                received += self._connection.recv(RECORD_SIZE_MAX)
            with suppress(SSL.WantReadError):
                assert not [*self.client.decode(self._connection.bio_read(RECORD_SIZE_MAX))]
            data = self.client.encode(b"")
        return received
