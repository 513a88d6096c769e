"""The chart of the demo. Needs the extra `demo`: `tox -e spark`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "spark"


@pytest.fixture
def chart(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("chart")


def samples(chart: ModuleType) -> list[object]:
    """Return a run of two nodes: 2,000 messages a second are published, and after 2 s 8,000 are in flight."""
    return [
        chart.Sample(
            seconds=second / 2,
            published=(500 * second, 500 * second),
            finished=(0, 100 * second),
            in_flight=(0 if second < 4 else 8000, 0),
            depth=(500 * second, 400 * second),
        )
        for second in range(9)
    ]


def test_chart_in_the_terminal_has_three_pictures(chart: ModuleType):
    lines = chart.draw(samples(chart), 100).splitlines()
    titles = [line.strip() for line in lines if line.strip() in {"messages per second", "in flight", "depth"}]
    assert titles == ["messages per second", "in flight", "depth"]
    assert max(map(len, lines)) == 100
    assert "\x1b" not in "".join(lines)


def test_picture_has_the_rates_of_all_nodes_together_and_the_levels_of_each(chart: ModuleType):
    (_, rates), (_, in_flight), (_, depth) = chart._pictures(samples(chart))
    assert rates["published"] == ([0.5 * number for number in range(1, 9)], [2000.0] * 8)
    assert rates["finished"][1] == [200.0] * 8
    assert in_flight["node 1"][1] == [0, 0, 0, 0, 8000, 8000, 8000, 8000, 8000]
    assert in_flight["node 2"][1] == [0] * 9
    assert depth["node 2"][1][-1] == 3200


def test_a_run_without_messages_has_a_chart(chart: ModuleType, tmp_path: Path):
    still = [chart.Sample(float(second), (0,), (0,), (0,), (0,)) for second in range(2)]
    assert "depth" in chart.draw(still, 80)
    chart.save(still, tmp_path / "still.png")
    assert (tmp_path / "still.png").read_bytes().startswith(b"\x89PNG")
