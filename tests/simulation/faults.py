"""The faults of a world: rules of ``nsqkit.testing``, with random values, for one connection.

They are those after which every message is finished once the faults have ended. So none of them drops a single RDY or
a single answer to a publish, which no network does.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from nsqkit.testing.link.faults import Fault, Faults

FAULTS = (
    *("reset", "close_at", "half_open", "silence", "close_on_accept"),
    *("delay", "bandwidth", "slices"),
    *("garbage", "wrong_type", "error", "drop", "duplicate", "redeliver"),
)


def add_fault(random: Random, faults: Faults, client: str) -> Fault | None:
    """Add a rule for a connection, or remove all rules; None if a rule of the same kind is there already."""
    if random.random() < 0.2:
        faults.clear()
    name = random.choice(FAULTS)
    with suppress(OptionError):
        match name:
            case "close_at":
                return faults.close_at(random.choice((0, 1, 5, 50)), frame=random.choice((1, 5)), client=client)
            case "half_open":
                return faults.half_open(random.choice((None, "to_broker", "to_client")), client=client)
            case "silence":
                return faults.silence(times=1)
            case "close_on_accept":
                return faults.close_on_accept(times=1)
            case "delay":
                return faults.delay(random.choice((0.001, 1, 20)), client=client, times=random.choice((1, 5)))
            case "bandwidth":
                return faults.bandwidth(random.choice((1_000, 100_000)), client=client)
            case "slices":
                return faults.slices(random.choice((1, 7, 100)), client=client, times=random.choice((1, 20)))
            case "garbage":
                return faults.garbage(b"\xff" * 20, client=client, direction="to_client", times=1)
            case "wrong_type":
                return faults.wrong_type(7, client=client, times=1)
            case "error":
                command, code = random.choice(
                    (("PUB", "E_PUB_FAILED"), ("FIN", "E_FIN_FAILED"), ("SUB", "E_SUB_FAILED"))
                )
                return faults.error(code, command=command, client=client, times=random.choice((1, 3)))
            case "drop":
                command = random.choice(("FIN", "TOUCH", "NOP", "HEARTBEAT"))
                return faults.drop(command=command, client=client, times=random.choice((1, 3)))
            case "duplicate":
                return faults.duplicate(client=client, times=random.choice((1, 3)))
            case "redeliver":
                return faults.redeliver(random.choice((0, 0.5)), client=client, times=random.choice((1, 3)))
            case "reset":
                return faults.reset(client=client, times=1)
    return None
