"""Daemons of a cluster. `tests/spark_chaos` starts those of Spark, which take half a minute; here are programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqkit.spark.testing import standalone

# The words that Spark's daemons log; the second word of the command is the class.
READY = """\
case $1 in
*.Master) echo "INFO Master: Starting Spark master at spark://127.0.0.1:7077" ;;
*) echo "INFO Worker: Successfully registered with master $(eval echo \\${$#})" ;;
esac
echo $$ $@ >> $0.started
read -r _ < $0.gate
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "spark-class"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setattr(standalone, "spark_home", lambda: tmp_path)
    return program


def test_cluster_has_its_workers(program: Path) -> None:
    program.write_text(f"#!/bin/sh\nmkfifo $0.gate 2>/dev/null\n{READY}")
    with standalone.standalone_cluster(workers=3, cores=2, memory="512m") as url:
        assert url == "spark://127.0.0.1:7077"
        lines = Path(f"{program}.started").read_text().splitlines()
    assert len(lines) == 4
    assert "org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 0 --webui-port 0" in lines[0]
    for line in lines[1:]:
        assert "org.apache.spark.deploy.worker.Worker" in line
        assert "--cores 2 --memory 512m" in line
        assert line.endswith(url)


def test_daemon_that_ends_is_an_error_with_its_log(program: Path) -> None:
    program.write_text("#!/bin/sh\necho no Java; exit 3")
    with pytest.raises(AssertionError, match="the master has ended with status 3:\nno Java"):
        with standalone.standalone_cluster():
            pass


def test_daemon_that_is_never_ready_is_an_error(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "START_LIMIT", 0.1)
    program.write_text("#!/bin/sh\nmkfifo $0.gate\necho starting; read -r _ < $0.gate")
    with pytest.raises(AssertionError, match="the master is not ready"):
        with standalone.standalone_cluster():
            pass
