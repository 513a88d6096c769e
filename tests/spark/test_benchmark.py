"""The benchmark of Spark runs, with a handful of messages; the measured figures mean nothing here."""

from __future__ import annotations

import pytest

from tests.benchmarks import spark
from tests.benchmarks.harness import Bench, Effort, RunFailed
from tests.benchmarks.table import render


def test_all_rows_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spark, "SMALL_MASTER", "local[1]")
    bench = Bench(Effort(rounds=1, scale=0.002))
    rows = list(spark.measure(bench))
    assert not bench.notes
    assert len(rows) == 9
    assert render(rows)
    assert all(row.value > 0 for row in rows)


def test_the_error_of_a_task_is_reported():
    with spark.SparkProgram("local[1]") as program, pytest.raises(RunFailed, match="KeyError: 'sleep'"):
        program.run("sleep")
