"""The fixtures, in runs of pytest of their own; those with a session are in test_session.py."""

from __future__ import annotations

import pytest

from nsqkit.spark.testing.session import CLUSTER

pytest_plugins = "pytester"

PLUGIN = ("-p", "nsqkit.spark.testing.plugin", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:trio")

PRINTS_ITS_MASTER = """
def test_it(run_driver, kill_driver, tmp_path):
    program = tmp_path / "job.py"
    program.write_text("import os; print(os.environ['PYSPARK_SUBMIT_ARGS'])")
    print("runs with", run_driver(program).split()[1])
    import pytest
    with pytest.raises(AssertionError, match="local"):
        kill_driver(program, when=lambda: False)
"""


@pytest.mark.parametrize(
    ("arguments", "ini", "master"),
    [
        ((), "", "local[2,4]"),
        ((f"--spark-master={CLUSTER}",), "", CLUSTER),
        ((), "spark_master = local[7]", "local[7]"),
    ],
)
def test_master_is_that_of_the_options(
    pytester: pytest.Pytester, arguments: tuple[str, ...], ini: str, master: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(PRINTS_ITS_MASTER)
    result = pytester.runpytest_subprocess(*PLUGIN, "-s", *arguments)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*runs with '{master.replace('[', '[[]')}'*"])


def test_plugin_does_not_import_spark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "def test_it():\n    import sys\n    assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)"
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)
