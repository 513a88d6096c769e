"""Measures how many simulated worlds of each size a core runs; see docs/simulation.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tests.benchmarks.harness import Bench, RunFailed, Sample
from tests.benchmarks.table import Floor, Row
from tests.simulation.runner import run_block
from tests.simulation.sizes import SIZES

FIRST_SEED: Final = 1_000
WORLDS: Final = 400
FLOORS: Final = {"core": 100, "driver": 40, "power": 150}


def measure(bench: Bench) -> Iterator[Row]:
    """Run the same worlds of each size in each round."""
    worlds = bench.effort.count(WORLDS)
    samples = bench.take_turns({size: partial(_run, size, worlds) for size in SIZES})
    for size, sample in samples.items():
        yield Row(
            what=f"simulation, {size} worlds",
            unit="worlds/s of CPU",
            value=sample["rate"],
            floors=[Floor(at_least=FLOORS[size])],
        )


def _run(size: str, worlds: int) -> Sample:
    result = run_block(size, range(FIRST_SEED, FIRST_SEED + worlds))
    if result.failures:
        raise RunFailed(f"the worlds {[*result.failures]} failed")
    return {"rate": result.worlds / result.cpu_s}
