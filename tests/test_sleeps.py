"""Tests do not sleep: they wait for an event, with a limit, or move a clock.

The programs of other clients, which users of those clients would write so, and the benchmarks are no tests.
"""

from __future__ import annotations

import re

from tests.pages import ROOT

SLEEP = re.compile(r"\b(?:time|anyio|asyncio|trio|gevent)\.sleep\(")


def test_no_test_sleeps():
    files = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if "benchmarks" not in path.parts and not path.name.endswith("_program.py")
    ]
    assert len(files) > 200
    found = [str(path.relative_to(ROOT)) for path in files if SLEEP.search(path.read_text(encoding="utf-8"))]
    assert not found
