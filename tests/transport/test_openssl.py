from __future__ import annotations

import os
import ssl

import pytest

from nsqkit.errors import ProtocolError
from nsqkit.transport.openssl import AnyCertificateContext
from nsqkit.transport.tls import TLS
from tests.certificates import HOST, client_context, exchange, write_files

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    files = write_files(tmp_path_factory.mktemp("certificates"))
    return AnyCertificateContext(files.certificate, files.key, minimum_version=TLS_1_2, ciphers="DEFAULT")


def new_pair(
    context: AnyCertificateContext, certificate: str | None, version: ssl.TLSVersion = TLS_1_3
) -> tuple[TLS, TLS]:
    rules = client_context(certificate)
    rules.minimum_version = rules.maximum_version = version
    return TLS(context), TLS(rules, server_hostname=HOST)


@VERSIONS
@pytest.mark.parametrize(("certificate", "name"), [("client", "client-one"), ("stranger", "stranger")])
def test_any_client_certificate_is_accepted(context, version, certificate, name):
    server, client = new_pair(context, certificate, version)
    hello = client.encode(b"hello")
    server.encode(b"OK")
    assert b"".join(server.decode(hello)) == b""
    assert exchange(server, client) == (b"hello", b"OK")
    assert server.common_name == name
    assert server.version == {TLS_1_2: "TLS1.2", TLS_1_3: "TLS1.3"}[version]
    assert server.cipher_suite == client.cipher_suite != ""
    assert server.negotiated_protocol == ""


@VERSIONS
def test_missing_client_certificate_is_refused(context, version):
    server, client = new_pair(context, None, version)
    with pytest.raises(ProtocolError, match="tls: client didn't provide a certificate"):
        exchange(server, client)
    assert not server.is_ready


def test_any_number_of_bytes_passes(context):
    server, client = new_pair(context, "client")
    exchange(server, client)
    plain = os.urandom(1_000_000)
    assert [*client.decode(server.encode(plain))] == [plain]
    assert [*server.decode(client.encode(plain))] == [plain]
    record = client.encode(b"hello")
    assert [*server.decode(record[:-1])] == []
    assert [*server.decode(record[-1:])] == [b"hello"]


def test_either_side_can_close_first(context):
    server, client = new_pair(context, "client")
    exchange(server, client)
    assert b"".join(server.decode(client.encode(b"last words") + client.end())) == b"last words"
    assert server.at_end
    assert b"".join(client.decode(server.end())) == b""
    assert client.at_end


def test_damaged_record_is_protocol_error_with_alert(context):
    server, client = new_pair(context, "client")
    exchange(server, client)
    record = client.encode(b"hello")
    with pytest.raises(ProtocolError, match="tls: decryption failed or bad record mac"):
        [*server.decode(record[:-1] + bytes([record[-1] ^ 1]))]
    assert server.has_output
    with pytest.raises(ProtocolError, match="bad record mac"):
        [*client.decode(server.encode(b""))]


def test_client_can_resume_session(context):
    rules = client_context("stranger")
    rules.maximum_version = TLS_1_2
    sessions: list[ssl.SSLSession | None] = []
    for session in (None, "the first one's"):
        server = TLS(context)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        engine = rules.wrap_bio(incoming, outgoing, server_hostname=HOST, session=sessions[0] if session else None)
        while True:
            try:
                engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                assert b"".join(server.decode(outgoing.read())) == b""
                incoming.write(server.encode(b""))
        sessions.append(engine.session)
        assert engine.session_reused is bool(session)


def test_old_version_is_refused(tmp_path):
    files = write_files(tmp_path)
    strict = AnyCertificateContext(files.certificate, files.key, minimum_version=TLS_1_3, ciphers="DEFAULT")
    server, client = new_pair(strict, "client", TLS_1_2)
    with pytest.raises(ProtocolError, match="tls: unsupported protocol"):
        exchange(server, client)
