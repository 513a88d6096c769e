"""Run worlds: ``python -m tests.simulation 1234 --trace`` runs one and writes its trace, ``--worlds 10000`` many."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.simulation.plan import Plan, PlanError, parse_seed, read_plan
from tests.simulation.runner import Job, Result, run_job
from tests.simulation.shrink import failure_of_plan, shrink
from tests.simulation.sizes import SIZES, draw_plan
from tests.simulation.trace import about, trace, trace_of

FAILURES_SHOWN: Final = 10


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a world fails, 2 if the input is wrong."""
    options = _parse(words)
    try:
        first = parse_seed(options.seed)
        plan = read_plan(Path(options.plan).read_text(encoding="utf-8")) if options.plan else None
        if (options.print_plan or options.shrink) and plan is None:
            plan = draw_plan(options.size, first)
    except (PlanError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.print_plan and plan is not None:
        print(plan.to_json(), end="")
        return 0
    if options.shrink and plan is not None:
        return _shrink(plan)
    if options.trace or options.about:
        lines, error_of_world = trace_of(partial(SIZES[options.size], first)) if plan is None else trace(plan)
        print(*(about(lines, options.about) if options.about else lines), sep="\n")
        return 0 if error_of_world is None else 1
    if plan is not None:
        failure = failure_of_plan(plan)
        print(f"1 worlds, {int(failure is not None)} failed", *([] if failure is None else [failure]), sep="\n")
        return 0 if failure is None else 1
    return _run(options, first)


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", default="0", help="the number of the (first) world")
    parser.add_argument("--plan", metavar="FILE", help="run the plan in this file instead")
    parser.add_argument("--size", choices=SIZES, default="core", help="which parts are real (default: core)")
    parser.add_argument("--worlds", type=_natural, help="the number of worlds (default: 1, with --minutes no limit)")
    parser.add_argument("--minutes", type=float, help="begin no more worlds after this time")
    parser.add_argument("--processes", type=_natural, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--until-failure", action="store_true", help="run no more worlds after one that fails")
    parser.add_argument("--print-plan", action="store_true", help="write the plan, and run nothing")
    parser.add_argument("--shrink", action="store_true", help="write a small plan that fails in the same way")
    parser.add_argument("--trace", action="store_true", help="write each event")
    parser.add_argument("--about", metavar="BODY", help="write the events of one message, such as producer-1.17.0")
    return parser.parse_args(words)


def _natural(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _shrink(plan: Plan) -> int:
    if failure_of_plan(plan) is None:
        print("the plan does not fail", file=sys.stderr)
        return 2
    print(shrink(plan).to_json(), end="")
    return 1


def _run(options: argparse.Namespace, first: int) -> int:
    begin = time.monotonic()
    job = Job(
        options.size,
        first,
        worlds=options.worlds if options.worlds or options.minutes else 1,
        seconds=None if options.minutes is None else 60 * options.minutes,
        processes=options.processes,
        until_failure=options.until_failure,
    )
    is_terminal = sys.stderr.isatty()
    result = run_job(job, _show_progress(job, begin) if is_terminal else lambda result: None)
    if is_terminal:
        print("\r\033[K", end="", file=sys.stderr)
    print(_record(job, result, time.monotonic() - begin))
    for seed, failure in sorted(result.failures.items())[:FAILURES_SHOWN]:
        print(f"{seed}: {failure}\n    {_command(job.size, seed)}")
    return 1 if result.failures else 0


def _show_progress(job: Job, begin: float) -> Callable[[Result], None]:
    def show(result: Result) -> None:
        print(f"\r\033[K{_record(job, result, time.monotonic() - begin)}", end="", file=sys.stderr, flush=True)

    return show


def _record(job: Job, result: Result, wall_s: float) -> str:
    """Return one line for a list of runs."""
    counts = f"{result.worlds} worlds, {len(result.failures)} failed"
    times = f"{result.cpu_s:.1f} s of CPU, {wall_s:.1f} s of wall time"
    return f"{counts}; {job.size} from {job.first}: {times}, {result.worlds / result.cpu_s:.1f} worlds/s/core"


def _command(size: str, seed: int) -> str:
    """Return the command that repeats a world that failed."""
    command = f"python -m tests.simulation {seed}"
    if size == "power":
        return f"{command} --size power --trace"
    option = "" if size == "core" else f" --size {size}"
    return f"{command}{option} --trace  # --shrink makes a small plan of it"


if __name__ == "__main__":
    sys.exit(main())
