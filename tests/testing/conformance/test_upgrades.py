from __future__ import annotations

from pathlib import Path

from nsqkit.testing.conformance.run import PASS, SKIP, run
from nsqkit.testing.conformance.upgrades import UPGRADES
from tests.testing.conformance.brokers import check_subject, right_broker


def test_only_a_right_broker_passes():
    check_subject(*UPGRADES)


def test_layers_are_checked_where_they_are_offered(tmp_path: Path):
    with right_broker(tmp_path) as target:
        assert {result.outcome for result in run(UPGRADES, target)} == {PASS}
    with right_broker(deflate=False, snappy=False) as target:
        skipped = {result.case.name: result.came for result in run(UPGRADES, target) if result.outcome == SKIP}
    assert skipped["upgrades/deflate"] == "the broker does not offer deflate"
    assert skipped["upgrades/snappy"] == "the broker does not offer snappy"
    assert skipped["upgrades/tls"] == "the broker does not offer tls_v1"
