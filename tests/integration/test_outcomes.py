"""The outcome of a message by kind and outcome of its handler and by end of the program; rules: docs/clients.md."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.outcomes import ASYNC_KINDS, BLOCKING_KINDS, ENDS, OUTCOMES, Cell, play


def exists(cell: Cell) -> bool:
    """Return whether such a program is possible."""
    if cell.kind in BLOCKING_KINDS:
        return not cell.runner and cell.end != "cancel"
    if not cell.runner or (cell.outcome == "awaitable" and cell.kind not in {"plain", "threads"}):
        return False
    if cell.keeps_loop and cell.outcome in {"hangs", "late"}:
        return False  # nothing but a signal ends a function that keeps the event loop
    return not (cell.kind == "async for" and cell.outcome in {"raises", "answers twice"} and cell.end == "leave")


CELLS = [
    cell
    for kind, outcome, end, runner in itertools.product(
        (*ASYNC_KINDS, *BLOCKING_KINDS), OUTCOMES, ENDS, ("asyncio", "trio", "")
    )
    if exists(cell := Cell(kind, outcome, end, runner))
]


def expected_finish(cell: Cell) -> bool:
    """Return whether the first call of the handler finishes the first message."""
    if cell.outcome in {"answers", "answers twice"}:
        # A plain handler keeps the event loop until it returns, so its answer is not sent before the end.
        return not (cell.keeps_loop and cell.end in {"lost", "restart"})
    if cell.end in {"lost", "restart"} or cell.is_interrupted:
        return False
    if cell.outcome == "awaitable":
        return cell.kind == "plain"
    return cell.outcome == "returns"


def check(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> None:
    result = play(cell, tmp_path_factory.mktemp("data"))
    is_finished = expected_finish(cell)
    ends_program = cell.kind == "async for" and cell.outcome in {"raises", "answers twice"}
    if cell.end in {"lost", "restart"} and cell.outcome != "hangs" and not ends_program:
        # The consumer continues: an unfinished message is delivered again.
        assert result.left == 0
        assert result.calls[b"1"] == (1 if is_finished else 2)
        return
    assert result.calls[b"1"] == 1
    was_second_handled = result.calls[b"2"] > 0
    assert result.left == (not is_finished) + (not was_second_handled)
    assert result.finished == is_finished + was_second_handled


@settings(
    deadline=None,
    max_examples=int(os.environ.get("NSQKIT_OUTCOMES", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(CELLS))
def test_every_cell_of_the_table_has_its_outcome(tmp_path_factory, cell):
    check(cell, tmp_path_factory)
