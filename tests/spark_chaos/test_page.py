"""The tests of docs/spark-testing.md, in two runs, because a run has one master."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqkit.spark.testing import CLUSTER, LOCAL
from tests.pages import SPARK_TESTING
from tests.spark_chaos.fault_points import VARIABLE
from tests.test_docs import run_test_blocks


@pytest.mark.parametrize(
    ("selected", "master"), [("not killed_executor", LOCAL), ("killed_executor", CLUSTER)], ids=["local", "cluster"]
)
def test_blocks_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selected: str, master: str):
    # The pytest of the page would import nsqkit for fault points before its plugins, which pytest reports.
    monkeypatch.delenv(VARIABLE, raising=False)
    run_test_blocks(SPARK_TESTING, tmp_path, "-k", selected, f"--spark-master={master}")
