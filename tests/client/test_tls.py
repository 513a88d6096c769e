from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL

from nsqkit.client.options import ConnectionOptions
from nsqkit.client.tls import client_context, make_tls
from nsqkit.errors import NegotiationFailed, OptionError, ProtocolError
from nsqkit.transport.tls import TLS, Context
from tests.certificates import (
    HOST,
    Files,
    authority,
    client_certificate,
    exchange,
    server_context,
    write_files,
)
from tests.renegotiating import RenegotiatingServer

ADDRESS = f"{HOST}:4150"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


def made(**options: Any) -> Context:
    context = client_context(ConnectionOptions(tls_v1=True, **options))
    assert context is not None
    return context


def shake_hands(
    context: Context, *, server: ssl.SSLContext | None = None, address: str = ADDRESS, server_name: str = ""
) -> TLS:
    """Do the handshake of a client and a server; return the server's end."""
    theirs = TLS(server or server_context())
    exchange(theirs, make_tls(context, address, server_name))
    return theirs


def test_context_without_tls_is_none():
    assert client_context(ConnectionOptions()) is None


def test_given_context_is_used():
    context = ssl.create_default_context()
    assert made(tls_context=context) is context


def test_broker_signed_by_given_authority_is_accepted(files):
    assert shake_hands(made(tls_root_ca_file=files.authority)).version == "TLS1.3"


def test_system_certificates_are_trusted_by_default(files, monkeypatch):
    with pytest.raises(ProtocolError, match="failed to verify server certificate"):
        shake_hands(made())
    monkeypatch.setenv("SSL_CERT_FILE", files.authority)
    assert shake_hands(made()).is_ready


def test_broker_with_other_name_is_refused(files):
    context = made(tls_root_ca_file=files.authority)
    with pytest.raises(ProtocolError, match=r"certificate is not valid for 'other\.example\.org'"):
        shake_hands(context, address="other.example.org:4150")
    assert shake_hands(context, address="other.example.org:4150", server_name=HOST).is_ready


@pytest.mark.parametrize("address", [":4150", "/run/nsqd.sock", "@nsqd"])
def test_address_without_host_is_localhost(files, address):
    assert shake_hands(made(tls_root_ca_file=files.authority), address=address).is_ready


def test_ip_address_is_verified(files):
    with pytest.raises(ProtocolError, match="IP address mismatch, certificate is not valid for '::1'"):
        shake_hands(made(tls_root_ca_file=files.authority), address="[::1]:4150")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("::1").configure_cert(server)
    assert shake_hands(made(tls_root_ca_file=files.authority), server=server, address="[::1]:4150").is_ready


def test_verification_can_be_disabled():
    assert shake_hands(made(tls_insecure_skip_verify=True), address="other.example.org:4150").is_ready


def test_client_certificate_is_sent(files, tmp_path):
    certificate, key = str(tmp_path / "client.pem"), str(tmp_path / "client.key")
    Path(certificate).write_bytes(b"".join(blob.bytes() for blob in client_certificate().cert_chain_pems))
    client_certificate().private_key_pem.write_to_path(key)
    server = server_context()
    authority().configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    context = made(tls_root_ca_file=files.authority, tls_cert=certificate, tls_key=key)
    assert shake_hands(context, server=server).common_name == "client-one"
    with pytest.raises(ProtocolError, match="client didn't provide a certificate"):
        shake_hands(made(tls_root_ca_file=files.authority), server=server)


def test_version_below_minimum_is_refused(files):
    server = server_context()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(made(tls_root_ca_file=files.authority), server=server).version == "TLS1.2"
    with pytest.raises(ProtocolError, match="unsupported protocol"):
        shake_hands(made(tls_root_ca_file=files.authority, tls_min_version="tls1.3"), server=server)


@pytest.mark.parametrize("version", ["tls1.0", "tls1.1"])
def test_old_version_is_allowed_without_warning(files, version, recwarn):
    context = made(tls_root_ca_file=files.authority, tls_min_version=version)
    assert not recwarn.list
    server = server_context()
    server.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        server.minimum_version = server.maximum_version = {
            "tls1.0": ssl.TLSVersion.TLSv1,
            "tls1.1": ssl.TLSVersion.TLSv1_1,
        }[version]
    assert shake_hands(context, server=server).version == version.upper()


def test_renegotiation_is_refused(files):
    server = RenegotiatingServer(made(tls_root_ca_file=files.authority))
    assert not [*server.client.decode(server.renegotiate())]
    with pytest.raises(SSL.Error, match="no renegotiation"):
        server.exchange(server.client.encode(b"NOP\n"))


@pytest.mark.parametrize("name", ["tls_root_ca_file", "tls_cert", "tls_key"])
def test_unusable_file_is_named(files, name):
    options = {"tls_cert": files.certificate, "tls_key": files.key, name: "missing.pem"}
    with pytest.raises(OptionError, match=rf"^{name} is 'missing.pem', which cannot be read: No such file"):
        made(**options)


@pytest.mark.parametrize("name", [".example.org", "a" * 70, "a..b"])
def test_invalid_server_name_is_refused(files, name):
    with pytest.raises(NegotiationFailed, match=r"tls: no server can have the name '.*': "):
        make_tls(made(tls_root_ca_file=files.authority), f"{name}:4150", "")
