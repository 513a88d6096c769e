"""The page of a night, and the limits of the hours at a constant rate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.night.__main__ import Result, page, run
from tests.night.soak_program import SAMPLES, Sample, trend
from tests.night.steps import Step, night_steps


def samples(*, growth: float = 0.0, drift: float = 1.0, slowing: float = 1.0, hours: float = 2.0) -> list[Sample]:
    found = []
    for number in range(1, SAMPLES + 1):
        at = hours * number / SAMPLES
        is_late = at > 0.6 * hours
        new_latency_ms = slowing if is_late else 1.0
        latency_ms = new_latency_ms * (drift if is_late else 1.0)
        found.append(Sample(at, 50 + growth * at, 40, latency_ms, new_latency_ms))
    return found


@pytest.mark.parametrize(
    ("changes", "exceeded"),
    [
        ({}, []),
        ({"growth": 0.9}, []),
        ({"growth": 1.1}, ["the broker grew by 1.10 MB an hour, and may grow by 1.0"]),
        ({"growth": 5.0, "hours": 0.1}, []),
        ({"growth": 20.0, "hours": 0.1}, ["the broker grew by 20.00 MB an hour, and may grow by 1.0"]),
        ({"drift": 1.05}, []),
        ({"drift": 1.5}, ["the latency rose by a factor of 1.50, and may rise by 1.1"]),
        ({"slowing": 3.0}, []),
        ({"slowing": 0.5, "drift": 1.5}, ["the latency rose by a factor of 1.50, and may rise by 1.1"]),
    ],
)
def test_growth_and_drift_have_limits(changes, exceeded):
    assert trend(samples(**changes)).exceeded == exceeded


def test_memory_of_the_first_quarter_does_not_count():
    first, *rest = samples()
    assert trend([Sample(first.hours, 5, 5, 9.0, 1.0), *rest]).exceeded == []


@pytest.mark.parametrize(
    ("code", "status", "outcome"),
    [("print('fine')", 0, "passed"), ("import sys; print('bad'); sys.exit(3)", 3, "**failed: 3**")],
)
def test_step_has_its_status_and_output(tmp_path, code, status, outcome):
    result = run(Step("one step", ("-c", code), 1), tmp_path)
    assert (result.status, result.outcome, len(result.lines)) == (status, outcome, 1)
    assert (tmp_path / "one-step.txt").exists()


def test_step_ends_at_its_limit(tmp_path):
    result = run(Step("long", ("-c", "import threading; threading.Event().wait()"), 0.01), tmp_path)
    assert (result.status, result.outcome) == (None, "**ended at its limit**")


def test_page_has_all_steps():
    steps = list(night_steps(7, 0.01, Path("night"), "/usr/bin/nsqd", "/usr/bin/nsqlookupd"))
    results = [Result(step, 0, 60.0, ("10 worlds, 0 failed",)) for step in steps]
    text = page([*results, Result(steps[0], 1, 60.0, ())], "abc1234", "2026-01-01")
    assert "steps, 1 failed" in text
    assert all(f"| {step.title} | passed | 1.0 |" in text for step in steps)
    assert all(step.command[0] == sys.executable for step in steps)


def test_night_with_all_comparisons_may_take_eight_hours():
    steps = list(night_steps(1, 1, Path("night"), "nsqd", "nsqlookupd"))
    assert sum(step.minutes_max for step in steps) <= 8 * 60
    assert len(steps) == 12


def test_night_without_a_real_nsqd_compares_nothing():
    assert [step.title for step in night_steps(1, 1, Path("night"), "", "")] == [
        *("core worlds", "driver worlds", "power worlds", "states of worlds", "mutants"),
        *("fuzzing", "histories of nsqkit", "memory and latency"),
    ]
