"""Certificates for the tests of TLS, created when the first test uses them.

No key is in the repository, and no key is created twice. There is one authority; a *stranger* has a certificate of
another one.
"""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

import attrs
import trustme

from nsqkit.transport.tls import TLS

HOST = "localhost"


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def server_certificate() -> trustme.LeafCert:
    return authority().issue_cert(HOST)


@functools.cache
def client_certificate() -> trustme.LeafCert:
    return authority().issue_cert("client.test", common_name="client-one")


@functools.cache
def stranger_certificate() -> trustme.LeafCert:
    return trustme.CA().issue_cert("stranger.test", common_name="stranger")


CLIENTS = {"client": client_certificate, "stranger": stranger_certificate}


def server_context() -> ssl.SSLContext:
    """Return the TLS context of a server that requires no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_certificate().configure_cert(context)
    return context


def client_context(certificate: str | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts the authority; ``certificate`` is one of ``CLIENTS``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if certificate is not None:
        CLIENTS[certificate]().configure_cert(context)
    return context


@attrs.frozen
class Files:
    """Paths of the server's certificate and key, and of the authority's certificate."""

    certificate: str
    key: str
    authority: str


def write_files(directory: Path) -> Files:
    """Write the server's files."""
    files = Files(*(str(directory / name) for name in ("server.pem", "server.key", "ca.pem")))
    Path(files.certificate).write_bytes(b"".join(blob.bytes() for blob in server_certificate().cert_chain_pems))
    server_certificate().private_key_pem.write_to_path(files.key)
    authority().cert_pem.write_to_path(files.authority)
    return files


def exchange(server: TLS, client: TLS) -> tuple[bytes, bytes]:
    """Exchange the output of both sides until there is none; return the bytes that each has read.

    Raises:
        ProtocolError: of the side that failed first, after the other side has received its alert.
    """
    received = {id(server): b"", id(client): b""}
    failure: Exception | None = None
    while client.has_output or server.has_output:
        for sender, receiver in ((client, server), (server, client)):
            if not sender.has_output:
                continue
            try:
                received[id(receiver)] += b"".join(receiver.decode(sender.encode(b"")))
            except Exception as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return received[id(server)], received[id(client)]


def connected(certificate: str | None = None) -> tuple[TLS, TLS]:
    """Return both ends of a connection after the handshake."""
    server, client = TLS(server_context()), TLS(client_context(certificate), server_hostname=HOST)
    exchange(server, client)
    return server, client
