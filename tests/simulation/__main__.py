"""Run worlds: ``python -m tests.simulation 1234 --trace`` runs one and writes its trace, ``--worlds 10000`` many."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.draw import draw
from tests.simulation.plan import Plan, PlanError, parse_seed, read_plan
from tests.simulation.shrink import failure_of, shrink
from tests.simulation.trace import about, trace


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a world fails, 2 if the input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", default="0", help="the number of the (first) world")
    parser.add_argument("--plan", metavar="FILE", help="run the plan in this file instead")
    parser.add_argument("--worlds", type=int, default=1, help="the number of worlds")
    parser.add_argument("--until-failure", action="store_true", help="run no more worlds after one that fails")
    parser.add_argument("--print-plan", action="store_true", help="write the plan, and run nothing")
    parser.add_argument("--shrink", action="store_true", help="write a small plan that fails in the same way")
    parser.add_argument("--trace", action="store_true", help="write each event")
    parser.add_argument("--about", metavar="BODY", help="write the events of one message, such as producer-1.17.0")
    options = parser.parse_args(words)
    try:
        plan = _plan(options)
    except (PlanError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.print_plan:
        print(plan.to_json(), end="")
    elif options.shrink:
        return _shrink(plan)
    elif options.trace or options.about:
        lines, error_of_world = trace(plan)
        print(*(about(lines, options.about) if options.about else lines), sep="\n")
        return 0 if error_of_world is None else 1
    elif options.plan:
        return _report({options.plan: failure_of(plan)})
    else:
        first = parse_seed(options.seed)
        begin = time.process_time()
        failures: dict[str, str | None] = {}
        for seed in range(first, first + options.worlds):
            failures[str(seed)] = failure_of(draw(seed))
            if options.until_failure and failures[str(seed)] is not None:
                break
        status = _report(failures)
        print(f"{len(failures) / (time.process_time() - begin):.1f} worlds a second of CPU")
        return status
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    if options.plan:
        return read_plan(Path(options.plan).read_text(encoding="utf-8"))
    return draw(parse_seed(options.seed))


def _shrink(plan: Plan) -> int:
    if failure_of(plan) is None:
        print("the plan does not fail", file=sys.stderr)
        return 2
    print(shrink(plan).to_json(), end="")
    return 1


def _report(failures: dict[str, str | None]) -> int:
    failed = {name: failure for name, failure in failures.items() if failure is not None}
    print(f"{len(failures)} worlds, {len(failed)} failed")
    for name, failure in failed.items():
        print(f"{name}: {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
