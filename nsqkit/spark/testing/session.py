"""Spark sessions of tests: on this machine, quiet, with their executors in the driver or in processes of their own.

A process has one session at a time, because it has one JVM.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[2,4]"
"""A master with two threads of the driver, and four attempts for each task; ``local[2]`` allows one."""

CLUSTER: Final = "local-cluster[2,1,1024]"
"""A master with two executors in processes of their own, each with one core and 1024 MiB."""

HOST: Final = "127.0.0.1"

SETTINGS: Final = {
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # A progress bar would be part of the output that pytest captures.
    "spark.ui.showConsoleProgress": "false",
}
"""Spark's settings that differ from its defaults."""

_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""The main class of an executor."""


def session_environment() -> dict[str, str]:
    """Return the environment variables that the driver's JVM needs before it starts."""
    return {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(_import_paths()),
        "SPARK_LOCAL_IP": HOST,
    }


def session_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``SETTINGS`` and others; executors import the modules that this process can import."""
    return {**SETTINGS, "spark.executorEnv.PYTHONPATH": session_environment()["PYTHONPATH"], **settings}


def _import_paths() -> list[str]:
    """Return the folders that this process imports from, without those of Python and its installed packages."""
    paths = dict.fromkeys(os.path.realpath(path) for path in sys.path)
    installed = tuple(os.path.join(os.path.realpath(prefix), "lib", "") for prefix in (sys.prefix, sys.base_prefix))
    return [path for path in paths if os.path.isdir(path) and not f"{path}{os.sep}".startswith(installed)]


@contextmanager
def local_session(master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Enter with a new session; stop it at the end.

    Args:
        master: ``LOCAL``, ``CLUSTER`` or another master of this machine.
        settings: Spark's settings besides ``SETTINGS``.

    Raises:
        OptionError: this process has a session already.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise OptionError("this process has a Spark session; allowed is one at a time: stop it before the next one")
    before = dict(os.environ)
    os.environ.update(session_environment())
    try:
        builder = SparkSession.builder.master(master).appName("nsqkit tests")
        for name, value in session_settings(settings or {}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        application_id = session.sparkContext.applicationId
        try:
            yield session
        finally:
            session.stop()
            # local-cluster has no setting for the folder of its executors.
            shutil.rmtree(spark_home() / "work" / application_id, ignore_errors=True)
    finally:
        os.environ.clear()
        os.environ.update(before)


def kill_executor(session: SparkSession) -> int:
    """Kill an executor by SIGKILL, as the kernel does when memory is short; Spark starts another one.

    Returns:
        The process id that it had.

    Raises:
        OptionError: the session has no executors in processes of their own.
        LookupError: none runs at present.
    """
    context = session.sparkContext
    if not (context.master or "").startswith("local-cluster"):
        raise OptionError(f"the master is {context.master!r}, whose executor is the driver; allowed is {CLUSTER!r}")
    jvm = context._jvm
    assert jvm is not None
    for process in jvm.java.lang.ProcessHandle.current().children().toArray():
        if _EXECUTOR in process.info().commandLine().orElse("") and process.destroyForcibly():
            process.onExit().get()
            return int(process.pid())
    raise LookupError("the session has no executor at present")


def spark_home() -> Path:
    """Return the folder of Spark: that of the variable SPARK_HOME, or of the installed package."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())
