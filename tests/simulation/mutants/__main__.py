"""``python -m tests.simulation.mutants [WORD …]`` runs worlds with each mutant whose name contains the words."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.mutant import run


def main(words: list[str]) -> int:
    """Run the mutants; return 1 if one is not noticed."""
    begin = time.monotonic()
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(run, chosen))
    for result in results:
        print("caught  " if result.is_caught else "SURVIVED", result.mutant.name, "|", result.text)
    caught_count = sum(result.is_caught for result in results)
    print(f"{caught_count} of {len(results)} mutants in {time.monotonic() - begin:.0f} s")
    return 0 if caught_count == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
