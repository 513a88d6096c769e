from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nsqkit import BlockingProducer, OptionError, Producer
from nsqkit.errors import NSQError
from nsqkit.testing.tls import Certificates, TLSNsqdServer


@pytest.mark.anyio
async def test_client_publishes_with_the_authority(nsqd_tls: TLSNsqdServer) -> None:
    async with Producer(nsqd_tls.tcp_address, tls_v1=True, tls_root_ca_file=nsqd_tls.ca_file) as producer:
        await producer.publish("t", b"x")
    async with Producer(nsqd_tls.tcp_address, tls_v1=True, tls_context=nsqd_tls.ssl_context) as producer:
        await producer.publish("t", b"x")


def test_client_publishes_with_its_certificate(nsqd_mtls: TLSNsqdServer) -> None:
    with BlockingProducer(
        nsqd_mtls.tcp_address,
        tls_v1=True,
        tls_root_ca_file=nsqd_mtls.ca_file,
        tls_cert=nsqd_mtls.client_certificate,
        tls_key=nsqd_mtls.client_key,
    ) as producer:
        producer.publish("t", b"x")
    with BlockingProducer(nsqd_mtls.tcp_address, tls_v1=True, tls_context=nsqd_mtls.ssl_context) as producer:
        producer.publish("t", b"x")


def test_client_without_tls_or_without_a_certificate_is_refused(
    nsqd_tls: TLSNsqdServer, nsqd_mtls: TLSNsqdServer
) -> None:
    with pytest.raises(NSQError), BlockingProducer(nsqd_tls.tcp_address, connect_timeout=0.1) as producer:
        producer.publish("t", b"x")
    with (
        pytest.raises(NSQError),
        BlockingProducer(
            nsqd_mtls.tcp_address, tls_v1=True, tls_context=nsqd_tls.ssl_context, connect_timeout=0.1
        ) as producer,
    ):
        producer.publish("t", b"x")


@pytest.mark.nsqd(tls_required="false")
def test_marker_changes_the_options_of_tls(nsqd_tls: TLSNsqdServer) -> None:
    with BlockingProducer(nsqd_tls.tcp_address) as producer:
        producer.publish("t", b"x")


def test_broker_with_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with TLSNsqdServer(Certificates.make(tmp_path, not_after=yesterday)) as nsqd:
        with pytest.raises(NSQError, match="certificate has expired"):
            options: Any = {"tls_v1": True, "tls_root_ca_file": nsqd.ca_file, "connect_timeout": 1.5}
            with BlockingProducer(nsqd.tcp_address, **options) as producer:
                producer.publish("t", b"x")


def test_missing_package_is_an_error_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(OptionError, match=r"pip install 'nsqkit\[testing\]'"):
        Certificates.make(tmp_path)
