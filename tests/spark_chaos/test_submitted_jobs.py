"""The jobs under spark/ by spark-submit, on a standalone cluster with two workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqkit.spark.testing.session import session_environment, session_settings, spark_home
from nsqkit.testing import NsqdServer
from tests.spark.job_runs import PROGRAMS, RUNS

# The runs that differ by more than the state of the checkpoint; tests/spark/test_jobs.py has all.
SUBMITTED = [name for name in RUNS if name != "batch_that_runs_again"]


@pytest.mark.parametrize("run", SUBMITTED)
def test_job_by_spark_submit(run: str, standalone_master: str, make_nsqd: Callable[[], NsqdServer], tmp_path: Path):
    def run_job(name: str, *arguments: object) -> None:
        command: list[str | Path] = [spark_home() / "bin" / "spark-submit", "--master", standalone_master]
        for setting, value in session_settings({}).items():
            command += ["--conf", f"{setting}={value}"]
        command += [PROGRAMS / f"{name}.py", *map(str, arguments)]
        job = subprocess.run(
            command,
            env=os.environ | session_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert job.returncode == 0, job.stdout

    RUNS[run](run_job, [make_nsqd(), make_nsqd()], tmp_path)
