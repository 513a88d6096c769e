"""The report of a run: as text for a bug report, and as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from nsqkit import __version__
from nsqkit.testing.conformance.case import Case
from nsqkit.testing.conformance.received import escape
from nsqkit.testing.conformance.run import FAIL, PASS, SKIP, Result

_NAME_WIDTH = 36
_INDENT = "      "


@attrs.frozen(kw_only=True)
class Report:
    """A run of the suite.

    Attributes:
        tcp_address: the broker's.
        http_address: the broker's, empty if it was not given.
        identify: the broker's answer to IDENTIFY.
        results: the results, in the order of the cases.
        seconds: how long the run took.
    """

    tcp_address: str
    http_address: str
    identify: Mapping[str, Any]
    results: Sequence[Result]
    seconds: float

    def count(self, outcome: str) -> int:
        """Return the number of cases with an outcome."""
        return sum(result.outcome == outcome for result in self.results)

    @property
    def version(self) -> str:
        """The version that the broker states."""
        return str(self.identify.get("version", "unknown"))

    @property
    def totals(self) -> str:
        """One line with the number of cases of each outcome."""
        return (
            f"{len(self.results)} cases: {self.count(PASS)} passed, {self.count(FAIL)} failed, "
            f"{self.count(SKIP)} skipped, in {self.seconds:.1f} s"
        )

    def to_text(self) -> str:
        """Return the report for people; texts of the broker cannot add lines or control a terminal."""
        http = f", HTTP {self.http_address}" if self.http_address else ", without HTTP"
        lines = [
            f"nsqkit {__version__} conformance: {self.tcp_address}{http}",
            f"version: {self.version}",
            f"IDENTIFY: {json.dumps(self.identify)}",
            "",
            *(line for result in self.results for line in _lines(result)),
            "",
            self.totals,
        ]
        return "".join(f"{escape(line)}\n" for line in lines)

    def to_json(self) -> str:
        """Return the report for programs."""
        document = {
            "nsqkit": __version__,
            "tcp_address": self.tcp_address,
            "http_address": self.http_address,
            "version": self.version,
            "identify": self.identify,
            "totals": {outcome: self.count(outcome) for outcome in (PASS, FAIL, SKIP)},
            "seconds": round(self.seconds, 3),
            "cases": [_document(result) for result in self.results],
        }
        return json.dumps(document, indent=1) + "\n"


def list_cases(cases: Iterable[Case]) -> str:
    """Return a line for each case: its name, its rule and the source of that."""
    return "".join(f"{_rule(case)}\n" for case in cases)


def _rule(case: Case) -> str:
    return f"{case.name:<{_NAME_WIDTH}} {case.rule} ({case.source})"


def _lines(result: Result) -> list[str]:
    lines = [f"{result.outcome}  {_rule(result.case)}"]
    if result.outcome == SKIP:
        lines.append(f"{_INDENT}reason: {result.came}")
    elif result.outcome == FAIL:
        lines += [f"{_INDENT}expected: {result.expected}", f"{_INDENT}came: {result.came}"]
        lines += [f"{_INDENT}| {line}" for line in result.transcript]
    return lines


def _document(result: Result) -> dict[str, Any]:
    case = result.case
    document: dict[str, Any] = {"name": case.name, "rule": case.rule, "source": case.source}
    document |= {"outcome": result.outcome, "seconds": round(result.seconds, 3)}
    if result.outcome == SKIP:
        document["reason"] = result.came
    elif result.outcome == FAIL:
        document |= {"expected": result.expected, "came": result.came, "transcript": list(result.transcript)}
    return document
