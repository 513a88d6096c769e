"""States that a long run of driver worlds has to reach: if it does not, the plans are too narrow.

``python -m tests.simulation.driver.sometimes 0 --worlds 2000`` prints how many worlds have reached each, and ends with
status 1 if one was not reached.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Final

from tests.simulation.driver.draw import draw
from tests.simulation.driver.world import World
from tests.simulation.trace import quiet

BLOCK: Final = 50

SOMETIMES: Final = {
    "cancelled at its timeout": "a handler was cancelled when its message had timed out",
    "cancelled by a stop": "a handler was cancelled because its consumer was stopped",
    "raises at its last attempt": "giving_up was called with a message",
    "given up in a thread": "giving_up was called with a message of a thread",
    "giving_up raises": "giving_up raised, and the message was requeued",
    "dead letter": "a dead letter was acknowledged",
    "no dead letter": "the publish of a dead letter failed, and its message was requeued",
    "third attempt": "a message was handled for the third time",
    "confirmed": "a broker confirmed the FIN of a message",
    "not confirmed": "a broker refused the FIN of a message, or it was not sent",
    "perhaps confirmed": "a connection ended before a FIN was confirmed",
    "leaves while it dials": "a consumer was stopped that was not connected to one of its brokers",
    "leaves with messages": "a consumer was stopped with messages in flight",
    "leaves its threads": "a consumer closed while a handler of it ran in a thread",
    "stop needs the whole time": "a consumer closed after its close_timeout",
    "permanent error": "a permanent error ended a consumer",
    "lost with its answer due": "a publish was lost after it was sent",
    "cancelled with its answer due": "a publish was cancelled after it was sent",
    "cancelled before it is sent": "a publish was cancelled before it was sent",
    "refused": "a broker refused a publish",
    "no connection": "a publish found no connection in time, or no space",
    "timed out": "a publish had no answer in time",
    "auth refused": "a broker refused a secret, or a command for the lack of a grant",
    "grant renewed": "a command waited until a grant was renewed, and went on",
    "handshake given up": "a client gave a handshake up while an auth server had not answered",
    "attempt fails": "an attempt of a partition ended by an error of its store or handler",
    "partition without an nsqd": "an attempt of a partition ended without one of its nsqds",
    "dead letter of a partition": "a partition published a dead letter",
    "report to statsd": "a broker has reported to statsd",
    "no broker": "a broker could not start because of its disk",
}


def reached_by(seeds: range) -> Counter[str]:
    """Run worlds; return how many of them have reached each state."""
    reached: Counter[str] = Counter()
    with quiet():
        for seed in seeds:
            world = World(draw(seed))
            with suppress(Exception):  # other commands report worlds that fail
                world.run()
            reached.update(world.reached)
    return reached


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.driver.sometimes", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=0, help="the number of the first world")
    parser.add_argument("--worlds", type=int, default=1000, help="the number of worlds (default: 1000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    options = parser.parse_args(words)
    end = options.seed + options.worlds
    blocks = [range(first, min(first + BLOCK, end)) for first in range(options.seed, end, BLOCK)]
    reached: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        for each in pool.map(reached_by, blocks):
            reached += each
    for name, sentence in SOMETIMES.items():
        print(f"{reached[name]:6d}  {sentence}")
    return 1 if SOMETIMES.keys() - reached.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
