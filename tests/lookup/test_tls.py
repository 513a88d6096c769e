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
    """Write a client's certificate and key; return the options that name them."""
    leaf: trustme.LeafCert = certificates.client_certificate()
    certificate, key = directory / "client.pem", directory / "client.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key)
    return {"lookupd_tls_cert": str(certificate), "lookupd_tls_key": str(key)}


async def test_by_default_there_are_no_rules_of_ones_own():
    context = ssl.create_default_context()
    assert lookupd_context(LookupOptions()) is None
    assert lookupd_context(LookupOptions(lookupd_tls_context=context)) is context


async def test_authority_and_certificate_from_files(tmp_path: Path):
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


async def test_a_certificate_of_ones_own_does_not_mean_that_nobody_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trusting: list[ssl.SSLContext] = []

    def load(context: ssl.SSLContext) -> None:
        trusting.append(context)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    assert lookupd_context(LookupOptions(**client_files(tmp_path))) in trusting


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
async def test_what_cannot_be_used_is_refused_before_anybody_is_asked(options, error):
    with pytest.raises(OptionError, match=error):
        LookupOptions(**options).daemons(["h:1"])
