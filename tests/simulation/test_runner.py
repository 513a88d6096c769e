"""Many worlds, on one process and on several."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from nsqkit.broker.core.topics.channel import Channel
from tests.simulation import runner
from tests.simulation.__main__ import main
from tests.simulation.broken import INVARIANTS
from tests.simulation.runner import Job, Result, run_block, run_job
from tests.simulation.sizes import SIZES


@pytest.fixture
def fake_size(monkeypatch):
    """A size of world of which every 20th fails."""

    def run(seed, trace=None):
        if seed % 20 == 0:
            raise AssertionError(f"world {seed} fails")

    monkeypatch.setitem(SIZES, "fake", run)


def test_block_has_the_sentence_of_each_failure(fake_size):
    result = run_block("fake", range(15, 45))
    assert result.worlds == 30
    assert result.failures == {seed: f"AssertionError: world {seed} fails" for seed in (20, 40)}
    assert gc.isenabled()


def test_blocks_cover_each_seed_once(fake_size):
    results: list[int] = []
    result = run_job(Job("fake", 7, worlds=120), lambda result: results.append(result.worlds))
    assert results == [50, 100, 120]
    assert sorted(result.failures) == [20, 40, 60, 80, 100, 120]


def test_a_failure_ends_the_run_if_that_is_wanted(fake_size):
    result = run_job(Job("fake", 1, worlds=None, until_failure=True), lambda result: None)
    assert (result.worlds, list(result.failures)) == (20, [20])


def test_run_ends_after_its_time(fake_size, monkeypatch):
    times = iter([0.0, 0.0, 59.0, 60.0])
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(times), process_time=lambda: 0.0))
    assert run_job(Job("fake", 1, worlds=None, seconds=60), lambda result: None).worlds == 100


@pytest.mark.parametrize("size", ["core", "power"])
def test_processes_share_the_worlds(size, monkeypatch):
    monkeypatch.setattr(runner, "BLOCK", 2)
    reported: list[Result] = []
    result = run_job(Job(size, 300, worlds=7, processes=2), reported.append)
    assert (result.worlds, result.failures, len(reported)) == (7, {}, 4)
    assert result.cpu_s > 0


def test_command_writes_how_to_repeat_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(Channel, "unpause", lambda self: setattr(self, "paused", False))
    assert main(["0", "--worlds", "300", "--processes", "1", "--until-failure"]) == 1
    record, failure, command = capsys.readouterr().out.splitlines()
    assert ", 1 failed; core from 0: " in record
    seed, _, sentence = failure.partition(": ")
    assert sentence.startswith(tuple(f"invariant {number}: {INVARIANTS[number]}: " for number in (14, 26, 27)))
    assert command == f"    python -m tests.simulation {seed} --trace  # --shrink makes a small plan of it"


def test_power_worlds_have_a_trace_and_no_plan(capsys):
    assert main(["3", "--size", "power", "--trace"]) == 0
    assert "publish to" in capsys.readouterr().out
    assert main(["3", "--size", "power", "--shrink"]) == 2
    assert capsys.readouterr().err == "a power world has no plan\n"
