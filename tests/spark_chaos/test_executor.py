"""Executors that die: `local-cluster` has two, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqkit.spark.testing import CLUSTER
from tests.spark_chaos.conftest import Nodes
from tests.spark_chaos.fault_points import Fault
from tests.spark_chaos.stream import Job, Outcome

PROGRAM = Path(__file__).parent / "stream_program.py"


@pytest.mark.parametrize("point", ["put_slot:after", "downstream:after"])
def test_executor_dies(
    nodes: Nodes, tmp_path: Path, inject: Callable[..., Fault], run_driver: Callable[..., str], point: str
):
    job = Job(tmp_path, nodes.options)
    fault = inject(point, "kill_executor", call=2)
    nodes.drain(lambda: run_driver(PROGRAM, tmp_path, json.dumps(job.options), "{}", master=CLUSTER))
    assert fault.marker.exists()
    assert nodes.check(job) == Outcome(0, 0)
