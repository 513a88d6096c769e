from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsqkit.errors import OptionError, RequestFailed
from nsqkit.lookup.lookupd_client import lookup_topics
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.tls import lookupd_context
from tests import certificates
from tests.answering import answering, http_answer

pytestmark = pytest.mark.anyio


def client_files(directory: Path) -> dict[str, Any]:
    """Write a client's certificate and key; return the options for them."""
    leaf: trustme.LeafCert = certificates.client_certificate()
    certificate, key = directory / "client.pem", directory / "client.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key)
    return {"lookupd_tls_cert": str(certificate), "lookupd_tls_key": str(key)}


def context_of(**options: Any) -> ssl.SSLContext | None:
    (daemon,) = LookupOptions(**options).daemons(["h:1"]).values()
    return daemon.tls_context


async def test_context_is_none_or_the_given_one_without_files():
    context = ssl.create_default_context()
    assert lookupd_context(None, root_ca_file="", cert="", key="") is None
    assert context_of(lookupd_tls_context=context) is context


async def test_certificate_authority_and_certificate_are_read_from_files(tmp_path: Path):
    files = certificates.write_files(tmp_path)
    theirs = certificates.server_context()
    theirs.verify_mode = ssl.CERT_REQUIRED
    certificates.authority().configure_trust(theirs)
    async with answering(lambda request: http_answer(b'{"topics":["t"]}'), tls=theirs) as server:
        where = [f"https://localhost:{server.port}"]
        authority: dict[str, Any] = {"lookupd_tls_root_ca_file": files.authority}
        options = LookupOptions(**authority, **client_files(tmp_path))
        assert await lookup_topics(where, options=options) == ["t"]
        for less in (authority, client_files(tmp_path)):
            with pytest.raises(RequestFailed):
                await lookup_topics(where, options=LookupOptions(**less))


async def test_own_certificate_leaves_system_certificates_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trusting: list[ssl.SSLContext] = []

    def load(context: ssl.SSLContext) -> None:
        trusting.append(context)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    assert context_of(**client_files(tmp_path)) in trusting


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"lookupd_tls_root_ca_file": "missing.pem"},
            "lookupd_tls_root_ca_file is 'missing.pem', which cannot",
        ),
        (
            {"lookupd_tls_cert": "missing.pem", "lookupd_tls_key": "x"},
            "lookupd_tls_cert is 'missing.pem', which cannot be read",
        ),
        ({"lookupd_tls_cert": "c.pem"}, "go together: only one of them is set, to 'c.pem'"),
        ({"lookupd_tls_key": "c.key"}, "go together: only one of them is set, to 'c.key'"),
        (
            {"lookupd_tls_root_ca_file": "c.pem", "lookupd_tls_context": ssl.create_default_context()},
            "lookupd_tls_root_ca_file is set; allowed is to set it only without lookupd_tls_context",
        ),
    ],
    ids=["no authority", "no certificate", "no key", "key alone", "both"],
)
async def test_unusable_tls_options_are_refused_before_any_request(options, error):
    with pytest.raises(OptionError, match=error):
        LookupOptions(**options).daemons(["h:1"])
