"""A job on a standalone cluster, whose executors are processes of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import os

from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
context = session.sparkContext
pids = context.parallelize(range(8), 8).map(lambda _: __import__("nsqkit.spark") and os.getppid()).collect()
print("processes:", len(set(pids)), "master:", context.master)
"""


def test_job_runs_on_both_workers(run_driver: Callable[..., str], standalone_master: str, tmp_path: Path):
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    assert f"processes: 2 master: {standalone_master}" in run_driver(program, master=standalone_master)
