"""How near a consumer is to the broker, by their zones and regions.

Proximity matters only to a broker with the experiment enabled. A consumer that sends no IDENTIFY is not near. Two empty
names are the same place, as in nsqd (nsqd/protocol_v2.go).
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
"""nsqd's name of the experiment."""


def proximity_of(identity: IdentifyRequest, options: BrokerOptions) -> int:
    """Return how near a client with this IDENTIFY is."""
    if TOPOLOGY_AWARE not in options.enable_experiments:
        return GLOBAL
    if identity.topology_zone == options.topology_zone:
        return ZONE_LOCAL
    return REGION_LOCAL if identity.topology_region == options.topology_region else GLOBAL
