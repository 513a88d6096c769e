"""Run worlds: ``python -m tests.simulation --seed 1234 --trace`` runs and traces one, ``--worlds 10000`` runs many."""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the (first) world")
    parser.add_argument("--worlds", type=int, default=1, help="how many")
    parser.add_argument("--steps", type=int, default=150, help="before misfortune ends")
    parser.add_argument("--trace", action="store_true", help="tell what happens")
    options = parser.parse_args()
    failed = []
    for seed in range(options.seed, options.seed + options.worlds):
        try:
            World(seed, trace=print if options.trace else None).run(options.steps)
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    print(f"{options.worlds} worlds, {len(failed)} failed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
