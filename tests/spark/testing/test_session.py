"""Sessions of tests. `tests/spark_chaos` has executors, which take a minute to start and to die."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.testing.session import (
    LOCAL,
    SETTINGS,
    kill_executor,
    local_session,
    session_environment,
    session_settings,
)


def test_session_has_the_settings_of_tests(spark_session: Any) -> None:
    context = spark_session.sparkContext
    assert context.master == LOCAL
    assert {name: context.getConf().get(name) for name in SETTINGS} == SETTINGS


def test_executors_import_the_modules_of_the_test(spark_session: Any) -> None:
    rdd = spark_session.sparkContext.parallelize([1])
    assert rdd.map(lambda _: __import__("tests.rules").__name__).collect() == ["tests"]


def test_second_session_of_a_process_is_refused(spark_session: Any) -> None:
    with pytest.raises(OptionError, match="this process has a Spark session; allowed is one at a time"):
        with local_session():
            pass


def test_executor_that_is_the_driver_is_not_killed(spark_session: Any) -> None:
    with pytest.raises(OptionError, match=r"the master is 'local\[2,4\]', whose executor is the driver; allowed is"):
        kill_executor(spark_session)


def test_import_paths_are_those_of_the_process_without_its_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = Path(pytest.__file__).parents[1]
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), str(tmp_path / "missing"), os.__file__, ""])
    paths = session_environment()["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(tmp_path), os.getcwd()]


def test_settings_of_the_test_come_last() -> None:
    settings = session_settings({"spark.ui.enabled": "true", "spark.task.cpus": "2"})
    assert (settings["spark.ui.enabled"], settings["spark.task.cpus"]) == ("true", "2")
    assert settings["spark.executorEnv.PYTHONPATH"] == session_environment()["PYTHONPATH"]
