"""The jobs under spark/, in the session of the tests. Needs Java: `tox -e spark`.

tests/spark_chaos/test_submitted_jobs.py has the same runs by spark-submit, on a standalone cluster.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nsqkit.testing import NsqdServer
from tests.spark.job_runs import PROGRAMS, RUNS

JOBS = ["topic_to_parquet", "parquet_to_topic", "windowed_counts", "enrich_republish", "replay_dead_letters"]
LINES_MAX = 60


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a program under spark/."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module


@pytest.mark.parametrize("run", RUNS)
def test_job(
    run: str,
    program: Callable[[str], ModuleType],
    spark_session: Any,
    make_nsqd: Callable[[], NsqdServer],
    tmp_path: Path,
):
    def run_job(name: str, *arguments: object) -> None:
        job = program(name)
        job.run(spark_session, job.parser().parse_args([str(argument) for argument in arguments]))

    RUNS[run](run_job, [make_nsqd(), make_nsqd()], tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_job_is_short(job: str):
    assert len((PROGRAMS / f"{job}.py").read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def test_each_job_has_a_run():
    assert set(JOBS) <= set(RUNS)


@pytest.mark.parametrize("option", ["subscribe", "=flights", ""])
def test_option_without_a_name_is_refused(option: str, program: Callable[[str], ModuleType], capsys: Any):
    with pytest.raises(SystemExit) as ended:
        program("topic_to_parquet").parser().parse_args(["--output", "lake", "--source", option])
    assert ended.value.code == 2
    assert "has no name before a =; allowed is KEY=VALUE" in capsys.readouterr().err
