from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nsqkit.errors import OptionError
from nsqkit.transport.pem import load_authorities, load_certificate
from tests.certificates import CLIENTS, Files, write_files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


@pytest.fixture
def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def test_authorities_can_be_loaded(context, files):
    load_authorities(context, files.authority)
    assert len(context.get_ca_certs()) == 1


def test_certificate_and_key_can_be_loaded(context, files):
    load_certificate(context, files.certificate, files.key)


@pytest.mark.parametrize("whose", ["", "option "])
def test_missing_file_is_named(context, files, whose):
    missing = f"{files.key}.missing"
    errors = []
    for load in (
        lambda: load_certificate(context, missing, files.key, whose=whose),
        lambda: load_certificate(context, files.certificate, missing, whose=whose),
        lambda: load_authorities(context, missing, whose=whose),
    ):
        with pytest.raises(OptionError) as refused:
            load()
        errors.append(str(refused.value))
    assert errors == [
        f"{whose}{name} is {missing!r}, which cannot be read: No such file or directory"
        for name in ("tls_cert", "tls_key", "tls_root_ca_file")
    ]


def test_invalid_path_is_named(context):
    with pytest.raises(OptionError, match=r"tls_root_ca_file is .*, which cannot be read: embedded null byte"):
        load_authorities(context, "a\0b")


def test_other_formats_than_pem_are_refused(context, files, tmp_path):
    text = tmp_path / "text"
    text.write_text("nothing of the kind")
    with pytest.raises(OptionError, match=r"^tls_root_ca_file is .*; allowed is a file of certificates, in PEM"):
        load_authorities(context, str(text))
    with pytest.raises(OptionError, match=r"^tls_cert is .*; allowed is a certificate and its own key, in PEM"):
        load_certificate(context, str(text), files.key)


def test_key_of_other_certificate_is_refused(context, files, tmp_path):
    CLIENTS["client"]().private_key_pem.write_to_path(str(tmp_path / "other.key"))
    with pytest.raises(OptionError, match=r"its own key, in PEM \(.*mismatch\)"):
        load_certificate(context, files.certificate, str(tmp_path / "other.key"))
