"""Programs that a test runs or kills. None of these starts Spark; `tests/spark_chaos` kills drivers that do."""

from __future__ import annotations

import fcntl
import textwrap
from pathlib import Path

import pytest

from nsqkit.spark.testing import driver
from nsqkit.spark.testing.driver import kill_driver, run_driver
from nsqkit.spark.testing.session import CLUSTER


def write(folder: Path, text: str) -> Path:
    program = folder / "job.py"
    program.write_text(textwrap.dedent(text))
    return program


def test_output_of_a_program_is_returned(tmp_path: Path) -> None:
    program = write(tmp_path, "import os, sys; print(sys.argv[1:], os.environ['PYSPARK_SUBMIT_ARGS'])")
    output = run_driver(program, "a b", 1, master="local[1]")
    assert output.startswith("['a b', '1'] --master 'local[1]' --conf spark.driver.bindAddress=127.0.0.1 ")
    assert output.endswith(" pyspark-shell\n")


def test_program_that_fails_is_an_error_with_its_output(tmp_path: Path) -> None:
    program = write(tmp_path, "raise SystemExit('no more')")
    with pytest.raises(AssertionError, match=r"job\.py has failed \(status 1\):\nno more"):
        run_driver(program)


def test_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    program = write(tmp_path, "import signal; signal.pause()")
    with pytest.raises(AssertionError, match=r"has not ended in 0\.2 s"):
        run_driver(program, timeout=0.2)


def test_program_is_killed_at_a_condition_with_its_children(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import fcntl, pathlib, signal, subprocess, sys
        if len(sys.argv) == 2:
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "child"])
        else:
            started = open(sys.argv[1], "w")
            fcntl.flock(started, fcntl.LOCK_EX)
            print("locked", file=started, flush=True)
        signal.pause()
        """,
    )
    started = tmp_path / "started"
    kill_driver(program, started, when=lambda: started.exists() and started.read_text())
    with started.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel unlocks it when the child is dead


def test_program_that_ends_before_the_condition_is_an_error(tmp_path: Path) -> None:
    program = write(tmp_path, "print('early')")
    with pytest.raises(AssertionError, match=r"job\.py has ended before the condition held \(status 0\):\nearly"):
        kill_driver(program, when=lambda: False)


def test_condition_that_never_holds_is_an_error(tmp_path: Path) -> None:
    program = write(tmp_path, "import signal; signal.pause()")
    with pytest.raises(AssertionError, match=r"job\.py ran for 0\.2 s, and the condition did not hold"):
        kill_driver(program, when=lambda: False, timeout=0.2)


def test_executors_of_a_local_cluster_write_to_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "spark_home", lambda: tmp_path / "spark")
    for name in ("bin", "jars", "work"):
        (tmp_path / "spark" / name).mkdir(parents=True)
    program = write(
        tmp_path,
        """
        import os, pathlib
        home = pathlib.Path(os.environ["SPARK_HOME"])
        print(*sorted(path.name for path in home.iterdir()))
        (home / "work").mkdir()
        """,
    )
    assert run_driver(program, master=CLUSTER) == "bin jars\n"
    assert list((tmp_path / "spark" / "work").iterdir()) == []
