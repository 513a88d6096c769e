"""Two attempts at one partition at the same time, as with speculation or after an executor was thought dead.

They are two programs: Spark starts no speculative attempt on a host that runs one, and all executors are on this host.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark_chaos.conftest import COUNT, Nodes
from tests.spark_chaos.fault_points import Fault
from tests.spark_chaos.stream import CHANNEL, TOPIC

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(
    ("point", "call"), [("put_slot:before", 2), ("put_slot:after", 2), ("finish:after", 2), ("put_seal:before", 1)]
)
def test_attempt_that_stands_still_has_the_rows_of_the_other(
    nodes: Nodes,
    tmp_path: Path,
    inject: Callable[..., Fault],
    run_driver: Callable[..., str],
    run_in_thread: Callable[..., Any],
    point: str,
    call: int,
):
    options = {
        "topics": TOPIC,
        "channel": CHANNEL,
        "nsqd_tcp_addresses": [nsqd.tcp_address for nsqd in nodes.nsqds],
        "partitions": 1,
        "max_in_flight": 2000,
        "max_messages": COUNT // 2,
    }
    results: list[dict[str, Any]] = []

    def attempt() -> None:
        results.append(json.loads(run_driver(FOLDER / "attempt_program.py", tmp_path, json.dumps(options))))

    fault = inject(point, "stop", call=call)
    with run_in_thread(attempt):
        nodes.wait_for(fault.marker.exists)
        attempt()
        os.kill(int(fault.marker.read_text()), signal.SIGCONT)
    second, first = results
    assert first["digest"] == second["digest"]
    assert nodes.rest + first["rows"] == COUNT
