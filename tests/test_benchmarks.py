"""The benchmarks run, with a handful of messages each; the measured figures mean nothing here.

The clients' programs and the raw client are child processes, as in a whole run, so a benchmark that uses a changed API
of nsqkit fails here.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import pytest

from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME
from tests.benchmarks import clients, crowd, throughput
from tests.benchmarks.__main__ import MEASUREMENTS
from tests.benchmarks.harness import ROOT, Bench, Effort, RunFailed, run_program
from tests.benchmarks.layers import is_available
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.raw_client import fill, make_channel
from tests.benchmarks.table import Floor, Row, render, summary
from tests.benchmarks.traffic import Flow, Program

LEAST = Effort(rounds=1, scale=0.002)

RATE = Row(what="rate", unit="msg/s", value=3000, peers={"slow": 1000, "fast": 2000})
COST = Row(what="cost", unit="ms", value=2, peers={"cheap": 3, "dear": 8}, less_is_better=True)


@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name not in {"broker", "spark"}])
def test_measurements_run(name: str, monkeypatch: pytest.MonkeyPatch):
    """All measurements but those of client programs, the broker and Spark, which have separate tests."""
    figures = dict.fromkeys(("per_second", "cpu_per_100k", "p50_ms", "p99_ms"), 1.0)
    monkeypatch.setattr(clients, "run_program", lambda name, task: figures)
    bench = Bench(LEAST)
    rows = list(MEASUREMENTS[name](bench))
    assert len(render(rows).splitlines()) == 1 + len(rows) > 1
    assert not bench.notes


@pytest.mark.parametrize("case", throughput.CASES, ids=lambda case: f"{case.what}-{case.ways[0]}")
def test_each_case_of_throughput_runs(case: throughput.Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(throughput, "CASES", [case])
    bench = Bench(LEAST)
    if case.ways == ("writer",):
        bench.nsq_bench_directory = str(tmp_path)
        stand_in = tmp_path / "bench_writer"
        stand_in.write_text(  # stands in for nsqd's own program
            '#!/bin/sh\necho "duration: 1.5s - 9.9mb/s - 200.000ops/s - 5.000us/op"\n'
        )
        stand_in.chmod(0o700)
    rows = list(throughput.measure(bench))
    # Beside the stand-in, which sends nothing, the broker's CPU time may be 0.
    assert all(row.value > 0 for row in rows if not (row.less_is_better and case.ways == ("writer",)))
    assert bool(rows) is is_available(case.layer), bench.notes


@pytest.mark.parametrize("program", ["nsqkit", "nsqkit_blocking", "pynsq"])
def test_client_programs_run(program: str):
    with Bench(LEAST).serve() as broker:
        make_channel(broker.address, "bench")
        task = Assignment(mode="publish", address=broker.address, topic="bench", count=40, outstanding=4)
        assert run_program(program, task)["per_second"] > 0
        assert run_program(program, attrs.evolve(task, batch=5))["per_second"] > 0
        if program == "nsqkit":
            assert run_program(program, attrs.evolve(task, mode="publish-nowait"))["per_second"] > 0
        fill(broker.address, "bench", 1000)
        for mode in ["consume-sync", "consume-async", "consume-batches"] if program == "nsqkit" else ["consume"]:
            assert run_program(program, attrs.evolve(task, mode=mode, count=30))["cpu_per_100k"] > 0
        if program == "nsqkit_blocking":
            return
        latency = attrs.evolve(task, mode="latency", topic="latency", count=5, max_in_flight=1)
        assert run_program(program, latency)["p50_ms"] > 0


def test_failed_program_is_left_out_with_a_note():
    def fail() -> dict[str, float]:
        return dict(run_program("nsqkit", Assignment(mode="publish", address="nowhere", count=1)))

    bench = Bench(Effort(rounds=2))
    assert bench.take_turns({"good": lambda: {"figure": 1.0}, "bad": fail}) == {"good": {"figure": 1.0}}
    assert "bad failed" in bench.notes[0]
    assert "'nowhere' is not host:port" in bench.notes[0]
    with pytest.raises(RunFailed):
        fail()


def test_unknown_name_is_refused():
    command = [sys.executable, "-m", "tests.benchmarks", "nothing"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "'nothing' is not measured" in run.stderr


@pytest.mark.parametrize(
    ("output", "flow"),
    [
        ('{"count": 300, "seconds": 1.5}', Flow(300, 1.5)),
        ("[bench_writer] 2026/01/01 duration: 1.5s - 9.9mb/s - 200.000ops/s - 5.000us/op", Flow(300, 1.5)),
        ("[bench_reader] 2026/01/01 duration: 500ms - 9.9mb/s - 200.000ops/s - 5.000us/op", Flow(100, 0.5)),
    ],
)
def test_output_of_a_client_is_parsed(output: str, flow: Flow):
    assert Program([sys.executable, "-c", f"print({output!r})"], ROOT).wait() == flow


def test_failed_client_reports_the_reason():
    with pytest.raises(RunFailed, match="code 1: no such broker"):
        Program([sys.executable, "-c", "raise SystemExit('no such broker')"], ROOT).wait()


@pytest.mark.parametrize(
    ("row", "best", "ratio"),
    [(RATE, "fast", 1.5), (COST, "cheap", 1.5), (attrs.evolve(RATE, peers={}), None, None)],
)
def test_ratio_is_to_the_best_peer(row: Row, best: str | None, ratio: float | None):
    assert (row.best_peer, row.ratio()) == (best, ratio)


@pytest.mark.parametrize(
    ("less_is_better", "best", "ratio"),
    [(False, "steady", 2.0), (True, "rising", 0.2)],
)
def test_figures_of_several_rounds_are_compared_round_by_round(less_is_better: bool, best: str, ratio: float):
    turns = {"nsqkit": [2.0, 20.0, 30.0], "steady": [1.0, 10.0, 10.0], "rising": [0.5, 1.0, 6.0]}
    samples = Bench(Effort(rounds=3)).take_turns(
        {name: partial(next, iter([{"figure": figure} for figure in figures])) for name, figures in turns.items()}
    )
    assert {name: sample["figure"] for name, sample in samples.items()} == {
        "nsqkit": 20,
        "steady": 10,
        "rising": 1,
    }
    peers = {name: samples[name]["figure"] for name in ("steady", "rising")}
    row = Row(what="", unit="", value=samples["nsqkit"]["figure"], peers=peers, less_is_better=less_is_better)
    assert row.best_peer == best
    assert row.ratio() == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("row", "floor", "is_met"),
    [
        (COST, Floor(at_most=2), True),
        (COST, Floor(at_most=1.9), False),
        (COST, Floor(ratio=1.5), True),
        (COST, Floor(ratio=4, peer="dear"), True),
        (RATE, Floor(at_least=3000), True),
        (RATE, Floor(at_least=3001), False),
        (RATE, Floor(ratio=1.6), False),
        (RATE, Floor(ratio=3, peer="slow"), True),
        (RATE, Floor(ratio=3, peer="absent"), None),
    ],
)
def test_floors(row: Row, floor: Floor, is_met: bool | None):
    assert row.is_met(floor) is is_met


@pytest.mark.parametrize(
    ("floor", "text"),
    [
        (Floor(at_most=0.5), "≤ 0.5"),
        (Floor(at_least=0.8), "≥ 0.8"),
        (Floor(at_least=1_500_000), "≥ 1,500,000"),
        (Floor(ratio=1.3), "≥ 1.3× best peer"),
        (Floor(ratio=1, peer="nsqd"), "≥ 1× nsqd"),
    ],
)
def test_floor_is_printed_as_it_is_checked(floor: Floor, text: str):
    assert str(floor) == text


def test_page_lists_every_group():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "runs only these groups" in line)
    assert not set(MEASUREMENTS) - set(re.findall(r"\w+", row))


def test_summary_names_missed_floors():
    met = attrs.evolve(COST, floors=[Floor(at_most=2)])
    missed = attrs.evolve(RATE, floors=[Floor(ratio=1.6), Floor(at_most=9), Floor(ratio=1, peer="absent")])
    assert summary([met, RATE]) == "floors: 1 of 1 met"
    assert summary([met, missed]) == (
        "floors: 1 of 3 met, missed: rate, msg/s: 3,000 (1.50, ≥ 1.6× best peer); rate, msg/s: 3,000 (≤ 9), "
        "1 have no peer in this run"
    )


def test_empty_queue_is_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throughput, "DEPTH_MIN", 1e9)
    monkeypatch.setattr(throughput, "CASES", [throughput.Case(what="memory", ways=("in", "out"))])
    bench = Bench(LEAST)
    assert list(throughput.measure(bench))
    assert bench.notes == ["nsqkit ran dry in a round of memory: out, RDY 2500"]


@pytest.mark.parametrize("answers", [True, False])
def test_crowd_answers_heartbeats_and_reports_lost_connections(answers: bool):
    heartbeat_answered = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(2):  # IDENTIFY, SUB
                assert connection.recv(4096)
                connection.sendall(OK_FRAME)
            if answers:
                connection.sendall(HEARTBEAT_FRAME)
                assert connection.recv(4096) == b"NOP\n"
                heartbeat_answered.set()
                assert not connection.recv(4096)  # until the end of the block

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        serving = threads.submit(serve, listener)
        host, port = listener.getsockname()
        consumers = crowd.Crowd(f"{host}:{port}", "crowd", 1)
        if answers:
            with consumers:
                assert heartbeat_answered.wait(15)
        else:
            with pytest.raises(RunFailed, match="closed 1 of 1 idle connections"), consumers:
                serving.result(15)
                assert consumers.lost.wait(15)
        serving.result(15)


def test_table_and_document_agree():
    row = attrs.evolve(RATE, floors=[Floor(ratio=1.3), Floor(at_most=9)])
    head, line = render([row]).splitlines()
    assert head.split() == ["what", "unit", "nsqkit", "best", "peer", "ratio", "floor"]
    assert " ".join(line.split()) == "rate msg/s 3,000 fast 2,000 1.50 ≥ 1.3× best peer met, ≤ 9 missed"
    document = json.loads(json.dumps(row.as_document()))
    assert document["ratio"] == 1.5
    assert [floor["met"] for floor in document["floors"]] == [True, False]
