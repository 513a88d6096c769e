"""The table of all invariants in docs/simulation.md, made from the code: where each is checked, and its mutants.

``python -m tests.simulation.invariant_table`` writes it into the page. A check is found by its ``Broken(12, …)`` or
``conclude(12, …)``; a mutant names the invariants that it breaks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.simulation.broken import INVARIANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.mutant import ROOT

FOLDER: Final = Path(__file__).parent
PAGE: Final = ROOT / "docs" / "simulation.md"
BEGIN: Final = "<!-- The table of invariants, by tests.simulation.invariant_table -->\n"
END: Final = "<!-- The end of the table of invariants -->\n"
CHECKS: Final = frozenset(("Broken", "conclude"))


def places() -> dict[int, list[str]]:
    """Return the modules that check each invariant."""
    found: dict[int, list[str]] = {number: [] for number in INVARIANTS}
    for path in sorted(FOLDER.rglob("*.py")):
        if not path.name.startswith("test_"):
            name = path.relative_to(FOLDER).as_posix()
            for number in sorted(set(_numbers(ast.parse(path.read_text(encoding="utf-8"))))):
                found.setdefault(number, []).append(name)
    return found


def _numbers(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHECKS:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, int):
                yield first.value


def mutants() -> dict[int, list[str]]:
    """Return the names of the mutants that break each invariant."""
    return {number: [each.name for each in MUTANTS if number in each.breaks] for number in INVARIANTS}


def table() -> str:
    """Return the table."""
    checked_in, broken_by = places(), mutants()
    lines = ["| | invariant | checked in | mutants that break it |", "|---|---|---|---|"]
    for number, sentence in sorted(INVARIANTS.items()):
        names = broken_by[number]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        where = ", ".join(f"`{name}`" for name in checked_in[number])
        lines.append(f"| {number} | {sentence} | {where} | {'; '.join(names[:2])}{more} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
