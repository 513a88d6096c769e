"""Drivers that die: Python and the JVM at the same moment, at five points of a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark_chaos.conftest import Nodes
from tests.spark_chaos.fault_points import Fault
from tests.spark_chaos.stream import Job, Outcome

PROGRAM = Path(__file__).parent / "stream_program.py"


@pytest.mark.parametrize(
    ("point", "call"),
    [
        pytest.param("latest_offset:after", 1, id="before-offset-log"),
        pytest.param("store_plan:after", 2, id="after-plan"),
        pytest.param("put_slot:after", 2, id="in-drain"),
        pytest.param("sink:after", 2, id="after-sink"),
        pytest.param("latest_offset:before", 3, id="after-commit-log"),
    ],
)
def test_driver_dies(
    nodes: Nodes,
    tmp_path: Path,
    inject: Callable[..., Fault],
    kill_driver: Callable[..., None],
    run_driver: Callable[..., str],
    point: str,
    call: int,
):
    job = Job(tmp_path, nodes.options)
    fault = inject(point, "block", call=call)
    kill_driver(PROGRAM, tmp_path, json.dumps(job.options), "{}", when=fault.marker.exists)
    nodes.drain(lambda: run_driver(PROGRAM, tmp_path, json.dumps(job.options), "{}"))
    assert nodes.check(job) == Outcome(0, 0)


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
def test_restart_in_a_batch_with_other_partitions(
    nodes: Nodes,
    tmp_path: Path,
    inject: Callable[..., Fault],
    kill_driver: Callable[..., None],
    run_driver: Callable[..., str],
    before: int,
    after: int,
):
    job = Job(tmp_path, nodes.options)
    fault = inject("put_slot:after", "block", call=2)
    kill_driver(PROGRAM, tmp_path, json.dumps({**job.options, "partitions": before}), "{}", when=fault.marker.exists)
    nodes.drain(lambda: run_driver(PROGRAM, tmp_path, json.dumps({**job.options, "partitions": after}), "{}"))
    assert nodes.check(job) == Outcome(0, 0)
