"""Run everything that takes long, for a night: ``make night``.

Worlds of all sizes, fuzzing, histories of processes that are killed, comparisons with the real nsqd where one is named,
and hours at a constant rate. The steps run one after the other, and a failed one does not end the night. The result is
one page, ``night.md``, beside the whole output of each step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import attrs

from tests.night.steps import Step, night_steps

ROOT: Final = Path(__file__).parents[2]
LINES: Final = 12
"""Lines of the output of a step on the page, from its end."""


@attrs.frozen
class Result:
    """The end of a step.

    Attributes:
        step: the step.
        status: its exit status; None if it was ended because of its limit.
        seconds: its duration.
        lines: the end of its output.
    """

    step: Step
    status: int | None
    seconds: float
    lines: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """One or two words for the table."""
        if self.status is None:
            return "**ended at its limit**"
        return "passed" if self.status == 0 else f"**failed: {self.status}**"


def run(step: Step, folder: Path) -> Result:
    """Run a step; its whole output is a file in ``folder``."""
    path = folder / f"{step.title.replace(' ', '-')}.txt"
    begin = time.monotonic()
    with path.open("w", encoding="utf-8") as output:
        try:
            ran = subprocess.run(
                step.command,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=step.minutes_max * 60,
                check=False,
            )
            status: int | None = ran.returncode
        except subprocess.TimeoutExpired:
            status = None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return Result(step, status, time.monotonic() - begin, tuple(lines[-LINES:]))


def page(results: Sequence[Result], commit: str, day: str) -> str:
    """Return the page of a night."""
    failed = sum(result.status != 0 for result in results)
    total = sum(result.seconds for result in results)
    lines = [
        f"# Night of {day}, commit {commit}",
        "",
        f"{len(results)} steps, {failed} failed, {total / 3600:.1f} hours.",
        "",
        "| step | outcome | minutes | command |",
        "|---|---|---|---|",
    ]
    for result in results:
        command = " ".join(["python", *result.step.words])
        lines.append(f"| {result.step.title} | {result.outcome} | {result.seconds / 60:.1f} | `{command}` |")
    for result in results:
        lines += ["", f"## {result.step.title}", "", "```text", *result.lines, "```"]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a step has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.night", description=__doc__)
    parser.add_argument("--nsqd", default="", help="the path of a real nsqd 1.3 to compare with")
    parser.add_argument("--nsqlookupd", default="", help="the path of a real nsqlookupd 1.3 to compare with")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first world (default: the time)")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of a whole night (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".tox" / "night", help="for the page and all output")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    results: list[Result] = []
    for step in night_steps(options.seed, options.scale, options.folder, options.nsqd, options.nsqlookupd):
        print(f"{step.title} …", flush=True)
        results.append(run(step, options.folder))
        print(f"  {results[-1].outcome} after {results[-1].seconds / 60:.1f} minutes")
        path = options.folder / "night.md"
        path.write_text(page(results, commit, date.today().isoformat()), encoding="utf-8")
    print(path)
    return 1 if any(result.status != 0 for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
