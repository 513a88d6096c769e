from __future__ import annotations

import ssl
import sys
import warnings
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.tls import server_context
from nsqkit.errors import OptionError, ProtocolError
from nsqkit.transport.tls import TLS
from tests.certificates import (
    CLIENTS,
    HOST,
    Files,
    client_context,
    exchange,
    server_certificate,
    write_files,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return write_files(tmp_path_factory.mktemp("certificates"))


def options(files: Files, **values: str) -> BrokerOptions:
    return BrokerOptions(**{"tls_cert": files.certificate, "tls_key": files.key, **values})  # type: ignore[arg-type]


def client_of(version: ssl.TLSVersion | None, certificate: str | None = None) -> TLS:
    context = client_context(certificate)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
    return TLS(context, server_hostname=HOST)


def shake_hands(options: BrokerOptions, client: TLS) -> TLS:
    server = TLS(server_context(options))
    exchange(server, client)
    return server


# ---- client certificates-----------------------------------------------------------------------------------------


@pytest.mark.parametrize("certificate", [None, "client", "stranger"])
def test_without_a_policy_no_certificate_is_requested(files, certificate):
    for authority in ("", files.authority):
        server = shake_hands(options(files, tls_root_ca_file=authority), client_of(None, certificate))
        assert server.common_name == ""


@pytest.mark.parametrize(("certificate", "name"), [("client", "client-one"), ("stranger", "stranger")])
def test_with_require_any_certificate_is_accepted(files, certificate, name):
    for authority in ("", files.authority):
        required = options(files, tls_client_auth_policy="require", tls_root_ca_file=authority)
        assert shake_hands(required, client_of(None, certificate)).common_name == name


def test_with_require_verify_the_authority_must_have_signed(files):
    verified = options(files, tls_client_auth_policy="require-verify", tls_root_ca_file=files.authority)
    assert shake_hands(verified, client_of(None, "client")).common_name == "client-one"
    with pytest.raises(ProtocolError, match="tls: failed to verify client certificate"):
        shake_hands(verified, client_of(None, "stranger"))


def test_with_require_verify_the_file_may_contain_the_certificate_itself(files, tmp_path):
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(CLIENTS["stranger"]().cert_chain_pems[0].bytes())
    verified = options(files, tls_client_auth_policy="require-verify", tls_root_ca_file=str(stranger))
    assert shake_hands(verified, client_of(None, "stranger")).common_name == "stranger"
    with pytest.raises(ProtocolError, match="tls: failed to verify client certificate"):
        shake_hands(verified, client_of(None, "client"))


def test_with_require_verify_and_no_file_the_systems_authorities_count(files):
    verified = options(files, tls_client_auth_policy="require-verify")
    with pytest.raises(ProtocolError, match="tls: failed to verify client certificate"):
        shake_hands(verified, client_of(None, "client"))


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_without_a_certificate_is_refused(files, policy):
    wanted = options(files, tls_client_auth_policy=policy, tls_root_ca_file=files.authority)
    with pytest.raises(ProtocolError, match="tls: client didn't provide a certificate"):
        shake_hands(wanted, client_of(None))


# ---- versions and ciphers ---------------------------------------------------------------------------------------

VERSIONS = {
    "tls1.0": (ssl.TLSVersion.TLSv1, "TLS1.0"),
    "tls1.1": (ssl.TLSVersion.TLSv1_1, "TLS1.1"),
    "tls1.2": (ssl.TLSVersion.TLSv1_2, "TLS1.2"),
    "tls1.3": (ssl.TLSVersion.TLSv1_3, "TLS1.3"),
}


@pytest.mark.parametrize("policy", ["", "require"])
@pytest.mark.parametrize("spoken", VERSIONS)
@pytest.mark.parametrize("least", ["", *VERSIONS])
def test_versions_before_the_minimum_are_refused(files, least, spoken, policy):
    version, shown = VERSIONS[spoken]
    client = client_of(version, "client")
    rules = options(files, tls_min_version=least, tls_client_auth_policy=policy)
    if spoken >= least:
        assert shake_hands(rules, client).version == shown
    else:
        with pytest.raises(ProtocolError, match="tls: unsupported protocol"):
            shake_hands(rules, client)


@pytest.mark.parametrize("policy", ["", "require"])
def test_the_server_chooses_the_same_cipher_as_nsqd(files, policy):
    client = client_of(ssl.TLSVersion.TLSv1_2, "client")
    server = shake_hands(options(files, tls_client_auth_policy=policy), client)
    assert server.cipher_suite == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def test_no_deprecation_warning_for_old_versions(files, recwarn):
    server_context(options(files))
    assert not recwarn.list


# ---- files that cannot be used ----------------------------------------------------------------------------------


def encrypted_key(directory: Path) -> str:
    path = directory / "encrypted.key"
    key = serialization.load_pem_private_key(server_certificate().private_key_pem.bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return str(path)


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_root_ca_file"])
def test_a_missing_file_is_named(files, tmp_path, name):
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(OptionError) as refused:
        server_context(options(files, **{name: missing}))
    assert str(refused.value) == (f"option {name} is {missing!r}, which cannot be read: No such file or directory")


def test_a_key_of_another_certificate_is_refused(files, tmp_path):
    CLIENTS["client"]().private_key_pem.write_to_path(str(tmp_path / "other.key"))
    with pytest.raises(OptionError, match=r"allowed is a certificate and its own key, in PEM \(.*mismatch\)"):
        server_context(options(files, tls_key=str(tmp_path / "other.key")))


@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_a_file_that_is_not_pem_is_refused(files, tmp_path, name):
    (tmp_path / "text").write_text("nothing of the kind")
    with pytest.raises(OptionError, match="allowed is a certificate and its own key, in PEM"):
        server_context(options(files, **{name: str(tmp_path / "text")}))


def test_an_encrypted_key_is_refused_without_a_prompt(files, tmp_path):
    with pytest.raises(OptionError, match=r"option tls_key is .*, which is encrypted; allowed is a key that is not"):
        server_context(options(files, tls_key=encrypted_key(tmp_path)))


def test_authorities_have_to_be_certificates(files):
    with pytest.raises(OptionError, match=r"option tls_root_ca_file is .*; allowed is a file of certificates"):
        server_context(options(files, tls_root_ca_file=files.key))


def test_require_without_pyopenssl_is_refused(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    monkeypatch.delitem(sys.modules, "nsqkit.transport.openssl", raising=False)
    with pytest.raises(OptionError, match=r"needs pyOpenSSL, which comes with the extra nsqkit\[server\]"):
        server_context(options(files, tls_client_auth_policy="require"))
    server_context(options(files, tls_client_auth_policy="require-verify"))
