"""The demo and its chart. Needs Java and the extra `demo`: `tox -e spark`."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "spark"
ROWS = 2000


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("flights")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("demo")


def test_the_demo_without_java(tmp_path: Path):
    command: list[str | Path] = [sys.executable, PROGRAMS / "demo.py", f"--rows={ROWS}", "--partitions=2"]
    command.append(f"--chart={tmp_path / 'charts' / 'run.png'}")
    env = os.environ | {
        "JAVA_HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])),
    }
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "no Java 17 or newer: apt install" in run.stdout.splitlines()[0]
    assert "All 2,000 flights arrived, none twice, every figure agrees." in run.stdout.splitlines()[-1]
    assert all(f"  {title}\n" in run.stdout for title in ("messages per second", "in flight", "depth"))
    assert (tmp_path / "charts" / "run.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["charts"]


def test_the_demo_writes_charts_as_pictures_only(tmp_path: Path):
    command: list[str | Path] = [sys.executable, PROGRAMS / "demo.py", f"--chart={tmp_path / 'run.txt'}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "run.txt is no picture; allowed endings are .png, .svg, .pdf" in run.stderr


def test_the_demo_prints_wrong_figures(demo: ModuleType, flights: ModuleType):
    source = flights.Flights(ROWS)
    assert len(list(source.messages())) == ROWS
    figures = {**source.figures, "UA": flights.Figures(1, 1, 1)}
    outcome = demo.Outcome(figures, distinct_flights=ROWS - 1, distinct_messages=ROWS)
    found = "\n".join(demo.errors_of(outcome, source, demo.chart.Sample(0.0, (0, 0), (0, 0), (0, 0), (0, 0))))
    assert "0 messages were published, not 2,000" in found
    assert "0 messages were finished, not 2,000" in found
    assert "1,999 different flights have arrived, not 2,000" in found
    assert "rows have arrived, not 2,000" in found
    assert "UA: Figures(flights=1, delayed=1, delay_sum=1); the source has" in found
    assert "different messages" not in found
