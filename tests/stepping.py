"""The loop that drives any machine: the first page of docs/architecture.md, and the simulation's driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def step(machine: Any, data: bytes, now_ns: int, *engines: Any) -> tuple[bytes, Sequence[object]]:
    """Give a machine the bytes of one read; return the bytes to write, and the events."""
    if data:
        machine.receive_data(data, now_ns)
    while machine.has_input:
        machine.process_input(now_ns)
    for timed in (machine, *engines):
        if (deadline_ns := timed.next_deadline()) is not None and deadline_ns <= now_ns:
            timed.handle_deadline(now_ns)
    return machine.data_to_send(), machine.events()
