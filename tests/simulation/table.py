"""The table of what worlds reach: ``python -m tests.simulation.table 0 --worlds 20000``.

With ``--sometimes`` it ends with status 1 if a state of ``sometimes.py`` was not reached.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Final

from tests.simulation.draw import draw
from tests.simulation.sometimes import never
from tests.simulation.trace import quiet
from tests.simulation.watch import Watch
from tests.simulation.world import World

BLOCK: Final = 50


def watch_worlds(seeds: range) -> Watch:
    """Run worlds; return what they have reached."""
    watch = Watch()
    with quiet():
        for seed in seeds:
            watch.begin()
            with suppress(Exception):  # other commands report worlds that fail
                World(draw(seed), watch=watch).run()
    watch.begin()
    return watch


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.table", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=0, help="the number of the first world")
    parser.add_argument("--worlds", type=int, default=1000, help="the number of worlds (default: 1000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--sometimes", action="store_true", help="fail if a state was not reached")
    options = parser.parse_args(words)
    end = options.seed + options.worlds
    blocks = [range(first, min(first + BLOCK, end)) for first in range(options.seed, end, BLOCK)]
    watch = Watch()
    with ProcessPoolExecutor(options.processes) as pool:
        for each in pool.map(watch_worlds, blocks):
            watch.triples += each.triples
            watch.reached += each.reached
    print(*watch.table(), sep="\n")
    return 1 if options.sometimes and never(watch.reached) else 0


if __name__ == "__main__":
    sys.exit(main())
