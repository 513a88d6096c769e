"""Faults of tasks and workers in one session: no message is lost, and none arrives twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark_chaos.conftest import Nodes, publish
from tests.spark_chaos.fault_points import Fault
from tests.spark_chaos.stream import Job, Outcome

Inject = Callable[..., Fault]

NOTHING = Outcome(0, 0)

SINK_SECONDS = 9
"""Three times the message timeout."""


@pytest.fixture
def job(nodes: Nodes, tmp_path: Path) -> Job:
    return Job(tmp_path, nodes.options)


def test_two_actions_on_each_batch(spark_session: Any, nodes: Nodes, tmp_path: Path):
    job = Job(tmp_path, nodes.options, counts_first=True)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == NOTHING
    assert nodes.sum("timeout_count") == 0


@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("raise", "downstream:after"),
        ("raise", "put_slot:after"),
        ("kill", "downstream:after"),
        ("kill", "put_slot:before"),
        ("kill", "put_slot:after"),
        ("kill", "finish:half"),
        ("kill", "finish:after"),
        ("kill", "put_seal:before"),
        ("kill", "put_seal:after"),
    ],
)
def test_task_that_fails_once(spark_session: Any, nodes: Nodes, job: Job, inject: Inject, point: str, action: str):
    fault = inject(point, action, call=2)
    nodes.drain(lambda: job.run(spark_session))
    assert fault.marker.exists()
    assert nodes.check(job) == NOTHING


def test_batch_that_fails_as_often_as_it_may(spark_session: Any, nodes: Nodes, job: Job, inject: Inject):
    # One of two tasks fails four times, and Spark ends the query.
    inject("downstream:after", "raise", times=7)
    with pytest.raises(Exception, match="Injected"):
        job.run(spark_session)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == NOTHING


def test_worker_dies_between_slot_and_fin_while_later_partitions_drain(
    spark_session: Any, nodes: Nodes, tmp_path: Path, inject: Inject
):
    job = Job(tmp_path, {**nodes.options, "partitions": 8})
    fault = inject("put_slot:after", "kill")
    nodes.drain(lambda: job.run(spark_session))
    assert fault.marker.exists()
    assert nodes.check(job) == NOTHING


def test_worker_that_stands_still_between_slot_and_fin(
    spark_session: Any, nodes: Nodes, job: Job, inject: Inject, run_in_thread: Callable[..., Any]
):
    fault = inject("put_slot:after", "stop")
    with run_in_thread(job.run, spark_session):
        nodes.wait_for(fault.marker.exists)
        # nsqd delivers them to the same connection again, until a heartbeat is missing.
        nodes.wait_for(lambda: nodes.sum("timeout_count") >= 2000)
        os.kill(int(fault.marker.read_text()), signal.SIGCONT)
    nodes.drain(lambda: job.run(spark_session))
    outcome = nodes.check(job)
    assert outcome.lost_count == 0
    assert outcome.duplicate_count <= nodes.sum("timeout_count")


def test_sink_that_takes_longer_than_the_message_timeout(
    spark_session: Any, nodes: Nodes, tmp_path: Path, pytestconfig: pytest.Config
):
    def let_time_pass() -> None:
        if pytestconfig.getoption("--nsqd") == "process":
            threading.Event().wait(SINK_SECONDS)  # no test moves the clock of a process
            return
        for nsqd in nodes.nsqds:
            nsqd.clock.advance(SINK_SECONDS)

    job = Job(tmp_path, nodes.options, before_sink=let_time_pass)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == NOTHING
    assert nodes.sum("timeout_count") == 0


def test_memory_of_a_source_worker(spark_session: Any, nodes: Nodes, tmp_path: Path, inject: Inject):
    fault = inject("put_slot:after", "measure", times=1000)
    for number, nsqd in enumerate(nodes.nsqds):
        publish(nodes, nsqd, f"large-{number}", 2000, size=50_000)  # 200 MB
    job = Job(tmp_path, nodes.options)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == NOTHING
    assert 0 < max(fault.results) < 200 << 20
