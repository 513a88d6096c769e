"""One fault that is planted in a copy of nsqkit, with which worlds run until one fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[3]
REGRESSIONS: Final = Path(__file__).parents[1] / "regressions"
FIRST_SEED: Final = 100_000
SECONDS_MAX: Final = 180


@attrs.frozen
class Mutant:
    """One fault.

    Attributes:
        name: for the report.
        story: the harm that it does to a user.
        file: the module, below ``nsqkit/``.
        old: a piece of it, which occurs once.
        new: the piece with the fault.
        worlds: the most worlds that may pass.
        size: of the worlds.
        plan: a plan in ``regressions/`` that is run instead, for a fault that few worlds show.
        breaks: the numbers of the invariants that worlds with it break.
        seed: of the first world; named for a fault that few power worlds show, as these have no plans.
    """

    name: str
    story: str
    file: str
    old: str
    new: str
    worlds: int = 1_000
    size: str = "core"
    plan: str = ""
    breaks: tuple[int, ...] = ()
    seed: int = FIRST_SEED


@attrs.frozen
class Result:
    """The fate of a mutant.

    Attributes:
        mutant: the mutant.
        is_caught: whether a world failed.
        text: how many worlds it took, or why it was not noticed.
        step_count: steps of the plan that shrinking has made; 0 without it.
        shrink_s: seconds that shrinking took.
    """

    mutant: Mutant
    is_caught: bool
    text: str
    step_count: int = 0
    shrink_s: float = 0.0


def run(mutant: Mutant, python_path: str = "", *, shrink: bool = False) -> Result:
    """Plant a mutant in a copy of nsqkit, and run worlds with it; with ``shrink``, make the plan that fails small."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "nsqkit", Path(folder, "nsqkit"))  # with the compiled files, which keep their times
        path = Path(folder, "nsqkit", mutant.file)
        source = path.read_text(encoding="utf-8")
        if source.count(mutant.old) != 1:
            return Result(mutant, False, f"its lines occur {source.count(mutant.old)} times in {mutant.file}")
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        simulate = partial(_simulate, folder, python_path)
        try:
            ran = simulate(_words(mutant))
            lines = (ran.stdout or ran.stderr).strip().splitlines() or ["no output"]
            result = Result(mutant, ran.returncode == 1 and " failed" in lines[0], "; ".join(lines[:2]))
            if not (shrink and result.is_caught and not mutant.plan and mutant.size != "power"):
                return result
            begin = time.monotonic()
            small = simulate([lines[1].partition(":")[0], "--size", mutant.size, "--shrink"])
            step_count = len(json.loads(small.stdout)["steps"])
            return attrs.evolve(result, step_count=step_count, shrink_s=time.monotonic() - begin)
        except subprocess.TimeoutExpired:
            return Result(mutant, False, f"no verdict in {SECONDS_MAX} s")


def _simulate(folder: str, python_path: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the simulation's command with the copy of nsqkit in ``folder``."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(ROOT), python_path))}
    command = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def _words(mutant: Mutant) -> list[str]:
    """Return the arguments of the simulation's command."""
    if mutant.plan:
        return ["--plan", str(REGRESSIONS / f"{mutant.plan}.json")]
    worlds = [str(mutant.seed), "--size", mutant.size, "--worlds", str(mutant.worlds)]
    return [*worlds, "--until-failure", "--processes", "1"]
