"""Pairs of running programs: one for each set of flags, which stay running over all sequences."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.differential.comparison import Comparison, Difference, Explain
from tests.differential.differences import explain
from tests.differential.plan import Plan
from tests.differential.program import Program, ProgramError, own_command
from tests.differential.side import DIALECTS, Side


class Pairs:
    """Runs plans, each on the pair with its flags.

    Args:
        program: nsqd or nsqlookupd.
        reference: the command line of the program that nsqkit's is compared with.
        ours: the command line of nsqkit's.
        explanation: the rules of known differences.

    Attributes:
        explained: how often each known difference was found.
    """

    def __init__(
        self,
        program: str,
        reference: Sequence[str],
        ours: Sequence[str] | None = None,
        explanation: Explain = explain,
    ) -> None:
        self._program = program
        self._commands = (reference, ours or own_command(program))
        self._explanation = explanation
        self._directory = Path(tempfile.mkdtemp(prefix="differential-"))
        self._programs: list[Program] = []
        self._comparisons: dict[tuple[tuple[str, str], ...], Comparison] = {}
        self.explained: dict[str, int] = {}

    def run(self, plan: Plan) -> list[Difference]:
        """Run a plan; return its differences that are not known."""
        key = tuple(sorted(plan.options.items()))
        if key not in self._comparisons:
            self._comparisons[key] = self._start(plan)
        differences = self._comparisons[key].run(plan)
        if any(not program.is_running for program in self._programs):
            self._end()  # the next plan starts new ones
        return differences

    def _start(self, plan: Plan) -> Comparison:
        sides = []
        for command in self._commands:
            data_path = Path(tempfile.mkdtemp(dir=self._directory))
            program = Program(self._program, command, plan.options, data_path)
            self._programs.append(program)
            program.start()
            sides.append(Side(program, DIALECTS[self._program]))
        comparison = Comparison(sides[0], sides[1], self._explanation)
        comparison.explained = self.explained
        return comparison

    def _end(self) -> None:
        for comparison in self._comparisons.values():
            comparison.close()
        for program in self._programs:
            with suppress(ProgramError):
                program.remove()
        self._programs.clear()
        self._comparisons.clear()

    def __enter__(self) -> Pairs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)
