"""The steps of a night: which commands run, and for how long each may."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

WORLDS: Final = {"core": (100_000, 45), "driver": (30_000, 25), "power": (50_000, 15)}
"""The number of worlds of each size, and the minutes for them."""

STATES_WORLDS: Final = 20_000
"""At each scale: of 5,000, some do not reach all states."""

FUZZ_MINUTES: Final = 10.0
HISTORY_MINUTES: Final = 30.0
SEQUENCES: Final = {"nsqd": 20_000, "handover": 1_000, "lookupd": 5_000}
SOAK_MINUTES: Final = 120.0


@attrs.frozen
class Step:
    """One command.

    Attributes:
        title: for the page.
        words: arguments of the Python interpreter.
        minutes_max: after which it is ended, and has failed.
    """

    title: str
    words: tuple[str, ...]
    minutes_max: float

    @property
    def command(self) -> list[str]:
        return [sys.executable, *self.words]


def night_steps(seed: int, scale: float, folder: Path, nsqd: str, nsqlookupd: str) -> Iterator[Step]:
    """Yield the steps.

    Args:
        seed: of the first world; each night has other ones.
        scale: the share of a whole night.
        folder: for histories, since those of processes cannot be repeated.
        nsqd: the path of a real nsqd; empty for none.
        nsqlookupd: the path of a real nsqlookupd; empty for none.
    """

    def step(title: str, minutes_max: float, *words: str) -> Step:
        return Step(title, ("-m", *words), minutes_max * scale + 3)

    def count(whole: int) -> str:
        return str(max(1, round(whole * scale)))

    def minutes(whole: float) -> str:
        return f"{whole * scale:g}"

    def histories(name: str, *broker: str) -> Step:
        file = folder / f"history-of-{name}.jsonl"
        words = ("--seed", str(seed), "--minutes", minutes(HISTORY_MINUTES), "--history", str(file), *broker)
        return step(f"histories of {name}", 33, "tests.jepsen", *words)

    for size, (worlds, limit) in WORLDS.items():
        yield step(f"{size} worlds", limit, "tests.simulation", str(seed), "--size", size, "--worlds", count(worlds))
    states = ("tests.simulation.table", str(seed), "--worlds", str(STATES_WORLDS), "--sometimes")
    yield Step("states of worlds", ("-m", *states), 13)
    yield Step("mutants", ("-m", "tests.simulation.mutants"), 15)
    yield step("fuzzing", 80, "tests.fuzz", "--minutes", minutes(FUZZ_MINUTES))
    yield histories("nsqkit")
    if nsqd:
        yield histories("nsqd", "--broker", nsqd)
    for program, sequences in SEQUENCES.items():
        path = ("--nsqlookupd", nsqlookupd) if program == "lookupd" else ("--nsqd", nsqd)
        if path[1]:
            words = ("--program", program, "--sequences", count(sequences), "--keep-going", *path)
            yield step(f"differences, {program}", 20, "tests.differential", str(seed), *words)
    yield step("memory and latency", 122, "tests.night.soak_program", "--minutes", minutes(SOAK_MINUTES))
