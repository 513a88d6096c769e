"""How near a consumer is to the broker, by the places that both of them name.

The rule it guards: place matters only to a broker that was started with the experiment for it, and a consumer that
never told its place is near to nobody. Two empty names are the same place, as in nsqd (nsqd/protocol_v2.go).

How to read it: the proximities, then the one function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.wire.identify import IdentifyRequest

ZONE_LOCAL: Final = 0
REGION_LOCAL: Final = 1
GLOBAL: Final = 2
PROXIMITIES: Final = (ZONE_LOCAL, REGION_LOCAL, GLOBAL)
"""Nearest first, which is the order in which a channel serves its consumers."""

TOPOLOGY_AWARE: Final = "topology-aware-consumption"
"""The experiment."""


def proximity_of(identity: IdentifyRequest, options: BrokerOptions) -> int:
    """Return how near the client is that has identified itself so."""
    if TOPOLOGY_AWARE not in options.enable_experiments:
        return GLOBAL
    if identity.topology_zone == options.topology_zone:
        return ZONE_LOCAL
    return REGION_LOCAL if identity.topology_region == options.topology_region else GLOBAL
