"""Parts of the benchmark of Spark run, with a handful of messages; the measured figures mean nothing here."""

from __future__ import annotations

import pytest

from tests.benchmarks import spark
from tests.benchmarks.harness import Bench, Effort, RunFailed
from tests.benchmarks.table import render


def test_replays_writes_and_a_trickle_are_measured():
    bench = Bench(Effort(rounds=1, scale=0.002))
    with bench.serve() as first, bench.serve() as second, spark.SparkProgram("local[2]") as program:
        rows = [
            *spark.replay_rows(bench, (first, second), program),
            *spark.write_rows(bench, (first, second), program),
            *spark.trickle_rows(bench, (first, second), program),
        ]
    assert not bench.notes
    assert len(rows) == 5
    assert render(rows)
    assert all(row.value > 0 for row in rows)


def test_the_error_of_a_task_is_reported():
    with spark.SparkProgram("local[1]") as program, pytest.raises(RunFailed, match="KeyError: 'sleep'"):
        program.run("sleep")
