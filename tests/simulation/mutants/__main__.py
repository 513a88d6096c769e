"""``python -m tests.simulation.mutants [WORD …]`` runs worlds with each mutant whose name contains the words.

With ``--shrink``, the plan of the world that failed is made small, and its steps are counted.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.mutant import run


def main(words: list[str]) -> int:
    """Run the mutants; return 1 if one is not noticed."""
    begin = time.monotonic()
    shrink = "--shrink" in words
    names = [word for word in words if word != "--shrink"]
    chosen = [mutant for mutant in MUTANTS if all(name in mutant.name for name in names)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(partial(run, shrink=shrink), chosen))
    for result in results:
        print("caught  " if result.is_caught else "SURVIVED", result.mutant.name, "|", result.text)
        if result.step_count:
            print(f"         shrunk to {result.step_count} steps in {result.shrink_s:.0f} s")
    if shrunk := [result for result in results if result.step_count]:
        steps = statistics.median(result.step_count for result in shrunk)
        seconds = statistics.median(result.shrink_s for result in shrunk)
        print(f"{len(shrunk)} plans were shrunk: medians of {steps:g} steps and {seconds:.0f} s")
    caught_count = sum(result.is_caught for result in results)
    print(f"{caught_count} of {len(results)} mutants in {time.monotonic() - begin:.0f} s")
    return 0 if caught_count == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
