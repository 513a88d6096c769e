"""The pytest plugin: fixtures for tests of Spark jobs.

A suite asks for it by ``pytest_plugins``: it takes a fifth of a second to import, and a suite without Spark has no use
for it. Spark is imported only when a test uses a fixture.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from nsqkit.spark.testing import driver, session, standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--spark-master``, and its key in the configuration file."""
    text = f"the master of the Spark fixtures: {session.LOCAL} (default), or {session.CLUSTER} for kill_executor"
    parser.getgroup("nsq", "fixtures of nsqkit").addoption("--spark-master", metavar="MASTER", help=text)
    parser.addini("spark_master", text, default=session.LOCAL)


def _master(config: pytest.Config) -> str:
    master: str = config.getoption("spark_master") or config.getini("spark_master")
    return master


@pytest.fixture(scope="session")
def spark_session(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """A session for all tests (``nsqkit.spark.testing.local_session``), with the master of ``--spark-master``."""
    with session.local_session(_master(pytestconfig)) as spark:
        yield spark


@pytest.fixture
def kill_executor(spark_session: SparkSession) -> Callable[[], int]:
    """A function that kills an executor of ``spark_session`` (``nsqkit.spark.testing.kill_executor``)."""
    return partial(session.kill_executor, spark_session)


@pytest.fixture
def run_driver(pytestconfig: pytest.Config) -> Callable[..., str]:
    """A function that runs a Spark program to its end (``nsqkit.spark.testing.run_driver``)."""
    return partial(driver.run_driver, master=_master(pytestconfig))


@pytest.fixture
def kill_driver(pytestconfig: pytest.Config) -> Callable[..., None]:
    """A function that runs a Spark program, and kills it at a condition (``nsqkit.spark.testing.kill_driver``)."""
    return partial(driver.kill_driver, master=_master(pytestconfig))


@pytest.fixture(scope="session")
def standalone_master() -> Iterator[str]:
    """The URL of a master with two workers (``nsqkit.spark.testing.standalone_cluster``), for ``spark-submit``."""
    with standalone.standalone_cluster() as url:
        yield url
