from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nsqkit import BlockingProducer, OptionError
from nsqkit.testing.tls import Certificates, TLSNsqdServer


@pytest.mark.nsqd(tls_required="false")
def test_marker_changes_the_options_of_tls(nsqd_tls: TLSNsqdServer) -> None:
    with BlockingProducer(nsqd_tls.tcp_address) as producer:
        producer.publish("t", b"x")


def test_missing_package_is_an_error_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(OptionError, match=r"pip install 'nsqkit\[testing\]'"):
        Certificates.make(tmp_path)
