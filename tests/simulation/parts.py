"""Topics that give waiting messages to their channels in small parts, one after the other.

The oracle gives them all at once, so a node has all parts given before it does anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from tests.simulation.oracle import Oracle
    from tests.simulation.plan import Plan

PARTS_MAX: Final = 1_000


def give_parts(plan: Plan, broker: Broker, oracle: Oracle | None, now_ns: int) -> None:
    """Handle the deadlines that have come, until there is none, in a world with small parts: each part has one."""
    for _ in range(PARTS_MAX if "PART_COUNT" in plan.options.get("knobs", {}) else 0):
        due_ns = broker.next_deadline()
        if due_ns is None or due_ns > now_ns:
            return
        broker.handle_deadline(now_ns)
        if oracle is not None:
            oracle.deadline(now_ns)
