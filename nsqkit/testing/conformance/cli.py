"""The command ``conformance``: checks a broker and prints a report.

The exit code is 0 if no case failed, 1 if one failed, and 2 for a wrong command line or a broker that cannot be
checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

from nsqkit.errors import NSQError, OptionError
from nsqkit.testing.conformance.received import escape
from nsqkit.testing.conformance.report import Report, list_cases
from nsqkit.testing.conformance.run import FAIL, Target, contact, run
from nsqkit.testing.conformance.suite import CASES, select
from nsqkit.transport.address import split_address

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_DESCRIPTION = """Compare a broker with nsqd 1.3.0, from outside. The topics that this makes have names of their own,
which begin with nsqkit-conformance-, and are deleted at the end."""


def main(words: Sequence[str]) -> int:
    """Run the command line after ``conformance`` and return its exit code."""
    try:
        given = _parser().parse_args(words)
    except SystemExit as stop:  # argparse has printed the help, or the error
        return int(stop.code or 0)
    cases = select(given.only) if given.only else list(CASES)
    try:
        if not cases:
            raise OptionError(f"--only is {given.only!r}, which is in no name of a case; --list prints the names")
        if given.list:
            print(list_cases(cases), end="")
            return 0
        target = _target(given)
        start = time.monotonic()
        identify = contact(target)
    except NSQError as error:
        print(f"nsqkit conformance: {escape(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    report = Report(
        tcp_address=target.tcp_address,
        http_address=target.http_address,
        identify=identify,
        results=run(cases, target),
        seconds=time.monotonic() - start,
    )
    print(report.to_json() if given.json else report.to_text(), end="")
    return EXIT_FAILURE if report.count(FAIL) else 0


def _target(given: argparse.Namespace) -> Target:
    if given.address is None:
        raise OptionError("the address of the broker is missing: nsqkit conformance HOST:PORT")
    for address in filter(None, (given.address, given.http)):
        split_address(address)
    if not 0 < given.timeout <= 60:
        raise OptionError(f"--timeout is {given.timeout}; allowed are seconds above 0 and up to 60")
    return Target(tcp_address=given.address, http_address=given.http, timeout=given.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nsqkit conformance", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help="HOST:PORT of the protocol, as 127.0.0.1:4150")
    parser.add_argument(
        "--http", default="", metavar="ADDRESS", help="HOST:PORT of the HTTP routes; without it their cases are skipped"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="run the cases with this in their name, as pub/*")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="the limit for each answer; default: 5"
    )
    return parser
