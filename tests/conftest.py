"""Shared by all tests: the two event loops, and the effort of Hypothesis.

An async test is marked ``pytest.mark.anyio`` and runs twice, on asyncio and on trio. The fixture ``nsqd`` comes
from nsqkit's own pytest plugin, as it does for users. A plain test that uses the fixture ``run`` runs a program, an
async function without arguments, in each of the ways that users have (``tests/runners.py``).

Hypothesis profiles: ``default``, ``ci`` (selected where the variable CI is set; always the same examples, so that a
failure can be repeated) and ``thorough`` (``tox -e py -- --hypothesis-profile=thorough --timeout=900``).
"""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.runners import RUNNERS, Run

pytest_plugins = ["nsqkit.spark.testing.plugin"]

# Slow generation is more often due to a busy machine than to a strategy, and deadlines measure the machine.
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5_000)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A shell that starts the tests in the background ignores Ctrl-C, and so would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests of Spark have a separate environment (`tox -e spark`); elsewhere pyspark is not installed.
NEED_SPARK = [
    "spark/test_benchmark.py",
    "spark/test_held_reader.py",
    "spark/test_jobs.py",
    "spark/test_parquet_file.py",
    "spark/test_partition_writer.py",
    "spark/test_publish_plan.py",
    "spark/test_rdd.py",
    "spark/test_read_task.py",
    "spark/test_schema.py",
    "spark/test_sink.py",
    "spark/test_slot_faults.py",
    "spark/test_source.py",
    "spark/test_writer.py",
    "spark/testing/test_plugin.py",
    "spark/testing/test_session.py",
]
# Those of the demo need its extra, too.
NEED_DEMO = ["spark/test_chart.py", "spark/test_demo.py"]
# Those of the fixtures need the plugins of the group `test`, which other groups do not have.
NEED_PLUGINS = ["testing/test_other_plugins.py"]
collect_ignore = [
    *([] if importlib.util.find_spec("pyspark") else NEED_SPARK),
    *([] if all(map(importlib.util.find_spec, ["pyspark", "matplotlib", "plotext"])) else NEED_DEMO),
    *([] if all(map(importlib.util.find_spec, ["pytest_asyncio", "pytest_trio", "xdist"])) else NEED_PLUGINS),
]

# A project of its own, which `tox -e sample` tests.
collect_ignore.append("sample_project")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nsq", "programs that the tests of tests/integration/anywhere are run against, too")
    for program in ("nsqd", "nsqlookupd"):
        group.addoption(f"--{program}-binary", metavar="PATH", help=f"an {program}")


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Run:
    return RUNNERS[request.param]
