"""nsqds that go and come while a query runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsqkit.testing import NsqdServer
from tests.spark_chaos.conftest import Nodes, publish
from tests.spark_chaos.fault_points import Fault
from tests.spark_chaos.stream import Job, Outcome


@pytest.mark.parametrize(
    "point", ["latest_offset:after", "put_slot:before", "put_slot:after", "put_seal:after", "sink:after"]
)
def test_nsqd_stops_in_a_batch_and_comes_back(
    spark_session: Any,
    nodes: Nodes,
    tmp_path: Path,
    inject: Callable[..., Fault],
    run_in_thread: Callable[..., Any],
    point: str,
):
    job = Job(tmp_path, nodes.options)
    fault = inject(point, "wait", call=2)
    with run_in_thread(job.run, spark_session):
        nodes.wait_for(fault.marker.exists)
        nodes.nsqds[0].stop()
        fault.release()
    nodes.nsqds[0].start(keep_data=True)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == Outcome(0, 0)


def test_nsqd_is_added(spark_session: Any, nodes: Nodes, tmp_path: Path, make_nsqd: Callable[..., NsqdServer]):
    job = Job(tmp_path, nodes.options)
    nodes.drain(lambda: job.run(spark_session))
    nodes.nsqds.append(make_nsqd(journal=False))
    publish(nodes, nodes.nsqds[-1], "added", 1000)
    job = Job(tmp_path, nodes.options)
    nodes.drain(lambda: job.run(spark_session))
    assert nodes.check(job) == Outcome(0, 0)
