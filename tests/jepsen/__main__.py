"""Brokers under faults, and a check of all that their clients did and received.

``python -m tests.jepsen --minutes 5`` tests nsqkit's broker, ``--broker /usr/bin/nsqd`` another one, and
``--check FILE`` reads the history of an earlier run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

import anyio

from tests.jepsen.checker import check
from tests.jepsen.harness import CHANNELS, MSG_TIMEOUT_S, SYNC_TIMEOUT_S, Plan, run
from tests.jepsen.history import HistoryError, Setup, read_history
from tests.jepsen.process import BrokerFailed
from tests.jepsen.promises import PROMISES

DURABILITY = "--durability="


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a promise is broken, 2 if the input is wrong."""
    options = _parser().parse_args(words)
    try:
        if options.check:
            return _check(Path(options.check))
        with tempfile.TemporaryDirectory(prefix="jepsen-") as directory:
            path = Path(options.history) if options.history else Path(directory, "history.jsonl")
            with path.open("w", encoding="utf-8") as file:
                plan = Plan(options.minutes * 60, options.rate, options.pause)
                anyio.run(run, _setup(options), plan, Path(directory), file)
            return _check(path)
    except (BrokerFailed, HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    default = f"python -m nsqkit nsqd {DURABILITY}fsync {{flags}}"
    parser.add_argument("--broker", default=default, metavar="COMMAND", help=f"the command to test: {default}")
    parser.add_argument("--promise", choices=PROMISES, help="what it promises, if its command does not show that")
    parser.add_argument("--brokers", type=int, default=3, help="how many of them (3)")
    parser.add_argument("--minutes", type=float, default=5.0, help="for which faults are made (5)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second, in sum (300)")
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two faults of a broker (3)")
    parser.add_argument("--history", metavar="FILE", help="keep the history in this file")
    parser.add_argument("--check", metavar="FILE", help="run nothing, and check the history in this file")
    return parser


def _setup(options: argparse.Namespace) -> Setup:
    return Setup(
        options.promise or promise_of(options.broker),
        brokers=options.brokers,
        channels=CHANNELS,
        msg_timeout=MSG_TIMEOUT_S,
        sync_timeout=SYNC_TIMEOUT_S,
        seed=options.seed,
        command=options.broker,
    )


def promise_of(command: str) -> str:
    """Return the name of the promise that a command shows: nsqkit has a flag for it, and other brokers are nsqds."""
    words = shlex.split(command)
    if "nsqkit" not in words:
        return "nsqd"
    durability = [word.removeprefix(DURABILITY) for word in words if word.startswith(DURABILITY)]
    return "fsync" if durability == ["fsync"] else "nsqkit"


def _check(path: Path) -> int:
    with path.open(encoding="utf-8") as file:
        report = check(*read_history(file))
    print(report.table())
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
