"""The programs under spark/, run as by a user. Needs Java: `tox -e spark`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

PROGRAMS = Path(__file__).resolve().parents[2] / "spark"
ROWS = 2000


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("flights")


def test_flights_to_parquet_by_spark_submit(
    make_broker: Callable[[], Broker], flights: ModuleType, spark_environment: dict[str, str], tmp_path: Path
):
    brokers = [make_broker(), make_broker()]
    source = flights.Flights(ROWS)
    messages = list(source.messages())
    for broker, part in zip(brokers, (messages[: ROWS // 2], messages[ROWS // 2 :]), strict=True):
        broker.publish("flights", part)
    command: list[str | Path] = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]"]
    command += [PROGRAMS / "flights_to_parquet.py", "--output", tmp_path / "lake", "--empty-for=0.5"]
    command += ["--max-in-flight=4000"]
    for broker in brokers:
        command += ["--nsqd-tcp-address", broker.address]
    run = subprocess.run(command, env=os.environ | spark_environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    names = ("flights", "delayed", "delay_sum")
    assert {row["carrier"]: flights.Figures(*(row[name] for name in names)) for row in found} == source.figures
    assert sum(row["distinct_flights"] for row in found) == ROWS
    assert sum(row["distinct_messages"] for row in found) == ROWS
    assert sum(broker.depth("flights", "spark") for broker in brokers) == 0
