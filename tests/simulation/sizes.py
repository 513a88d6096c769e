"""The sizes of world: which parts are real, and how the world of a seed or of a plan is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tests.simulation import power
from tests.simulation.draw import draw
from tests.simulation.plan import Plan, PlanError
from tests.simulation.world import World

POWER_RUNS: Final = 3
POWER_STEPS: Final = 40


class Size(Protocol):
    """Runs the world of a seed, and raises an error if the world fails."""

    def __call__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        """Run it; ``trace`` is called with each line of its trace."""
        ...


def draw_plan(size: str, seed: int) -> Plan:
    """Return the plan of a seed.

    Raises:
        PlanError: worlds of this size have no plans.
    """
    if size == "core":
        return draw(seed)
    if size == "driver":
        from tests.simulation.driver.draw import draw as draw_driver  # here, since it imports all of nsqkit

        return draw_driver(seed)
    raise PlanError(f"a {size} world has no plan")


def run_plan(plan: Plan, trace: Callable[[str], None] | None = None) -> None:
    """Run a plan of any size, and raise an error if the world fails."""
    if plan.options.get("size") == "driver":
        from tests.simulation.driver.world import World as DriverWorld

        DriverWorld(plan, trace=trace).run()
    else:
        World(plan, trace=trace).run()


def _run_core(seed: int, trace: Callable[[str], None] | None = None) -> None:
    run_plan(draw_plan("core", seed), trace)


def _run_driver(seed: int, trace: Callable[[str], None] | None = None) -> None:
    run_plan(draw_plan("driver", seed), trace)


def _run_power(seed: int, trace: Callable[[str], None] | None = None) -> None:
    durability = "nsqd" if seed % 4 == 3 else "fsync"
    power.World(seed, trace, durability=durability).run(POWER_RUNS, POWER_STEPS)


SIZES: Final[dict[str, Size]] = {"core": _run_core, "driver": _run_driver, "power": _run_power}
