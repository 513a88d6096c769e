"""Give random command sequences to nsqd and to nsqkit, and compare the answers, /stats and the messages."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.differential.comparison import Difference
from tests.differential.draw import draw
from tests.differential.draw_handover import draw_handover
from tests.differential.draw_lookupd import draw_lookupd
from tests.differential.pairs import Pairs
from tests.differential.plan import Plan, PlanError, parse_seed, read_plan
from tests.differential.program import ProgramError, check_version, own_command
from tests.differential.shrink import shrink

DRAWINGS: Final[dict[str, Callable[[int], Plan]]] = {
    "nsqd": draw,
    "handover": draw_handover,
    "lookupd": draw_lookupd,
}
REPEATS: Final = 2
"""How often a plan that failed runs again: a difference that does not repeat is counted, and not shrunk."""


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the programs differ, 2 if the input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("seed", nargs="?", default="0", help="the number of the (first) sequence")
    parser.add_argument("--program", choices=DRAWINGS, default="nsqd", help="the kind of the sequences")
    parser.add_argument("--sequences", type=int, default=1, help="the number of sequences")
    parser.add_argument("--minutes", type=float, help="run for this time instead of a number of sequences")
    parser.add_argument("--plan", metavar="FILE", help="run the plan in this file instead")
    parser.add_argument("--print-plan", action="store_true", help="write the plan, and run nothing")
    parser.add_argument("--keep-going", action="store_true", help="shrink nothing, and run all sequences")
    parser.add_argument("--nsqd", metavar="PATH", default=os.environ.get("NSQD"), help="default: $NSQD")
    parser.add_argument(
        "--nsqlookupd", metavar="PATH", default=os.environ.get("NSQLOOKUPD"), help="default: $NSQLOOKUPD"
    )
    parser.add_argument("--own", action="store_true", help="compare nsqkit with itself")
    options = parser.parse_args(words)
    try:
        plan = _first_plan(options)
        if options.print_plan:
            print(plan.to_json(), end="")
            return 0
        with Pairs(plan.program, _reference(options, plan.program)) as pairs:
            return _Command(options, pairs).run(plan)
    except (PlanError, ProgramError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _first_plan(options: argparse.Namespace) -> Plan:
    if options.plan:
        return read_plan(Path(options.plan).read_text(encoding="utf-8"))
    return DRAWINGS[options.program](parse_seed(options.seed))


def _reference(options: argparse.Namespace, program: str) -> list[str]:
    if options.own:
        return own_command(program)
    path = getattr(options, program)
    if not path:
        raise ProgramError(f"there is no program to compare with: give --{program} or set {program.upper()}")
    check_version(program, [path])
    return [path]


class _Command:
    def __init__(self, options: argparse.Namespace, pairs: Pairs) -> None:
        self._options = options
        self._pairs = pairs
        self._not_repeated: list[str] = []

    def run(self, plan: Plan) -> int:
        """Run the plan, or the sequences from its seed on."""
        if self._options.plan:
            return self._report(self._options.plan, plan, self._pairs.run(plan))
        first, count, status = parse_seed(self._options.seed), 0, 0
        begin, cpu = time.monotonic(), time.process_time()
        while self._goes_on(count, time.monotonic() - begin):
            seed, count = first + count, count + 1
            plan = DRAWINGS[self._options.program](seed)
            if differences := self._repeated(str(seed), plan):
                status = self._report(str(seed), plan, differences)
                if not self._options.keep_going:
                    break
        seconds = time.monotonic() - begin
        print(f"{count} sequences in {seconds:.0f} s, {count / seconds:.1f} a second")
        print(f"CPU of this process: {(time.process_time() - cpu) / count * 1000:.1f} ms a sequence")
        for row, number in sorted(self._pairs.explained.items()):
            print(f"known: {row}: {number}")
        if self._not_repeated:
            print("differences that did not repeat:", *self._not_repeated)
        return status

    def _goes_on(self, count: int, seconds: float) -> bool:
        if self._options.minutes is not None:
            return seconds < float(self._options.minutes) * 60
        return count < int(self._options.sequences)

    def _repeated(self, name: str, plan: Plan) -> list[Difference]:
        """Run a plan; return differences that are there each time."""
        differences = self._pairs.run(plan)
        for _ in range(REPEATS if differences else 0):
            if not (again := self._pairs.run(plan)):
                self._not_repeated.append(f"{name} ({differences[0].where})")
                print(f"{name}: not repeated:", *differences, sep="\n", file=sys.stderr)
                return []
            differences = again
        return differences

    def _report(self, name: str, plan: Plan, differences: list[Difference]) -> int:
        if not differences:
            print(f"{name}: no difference that is not known")
            return 0
        print(f"{name}: the programs differ", *differences, sep="\n", flush=True)
        if not self._options.keep_going:
            small = shrink(plan, self._pairs.run)
            print("The smallest plan that fails so:", small.to_json(), sep="\n", end="")
            print(*self._pairs.run(small), sep="\n")
        if not self._options.plan:
            print(f"python -m tests.differential {name} --program {self._options.program} {self._program_words(plan)}")
        return 1

    def _program_words(self, plan: Plan) -> str:
        return "--own" if self._options.own else f"--{plan.program} {getattr(self._options, plan.program)}"


if __name__ == "__main__":
    sys.exit(main())
