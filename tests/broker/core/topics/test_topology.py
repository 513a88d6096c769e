from __future__ import annotations

import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.topology import GLOBAL, PROXIMITIES, REGION_LOCAL, ZONE_LOCAL, proximity_of
from nsqkit.wire.identify import IdentifyRequest

EXPERIMENT = ("topology-aware-consumption",)


@pytest.mark.parametrize(
    ("zone", "region", "proximity"),
    [
        ("z", "r", ZONE_LOCAL),
        ("z", "elsewhere", ZONE_LOCAL),  # an equal zone decides; nsqd does not compare the region
        ("y", "r", REGION_LOCAL),
        ("y", "elsewhere", GLOBAL),
        ("", "", GLOBAL),
    ],
)
def test_proximity_is_the_smallest_common_place(zone, region, proximity):
    identity = IdentifyRequest(topology_zone=zone, topology_region=region)
    options = BrokerOptions(enable_experiments=EXPERIMENT, topology_zone="z", topology_region="r")
    assert proximity_of(identity, options) == proximity


def test_two_empty_zones_are_equal():
    assert proximity_of(IdentifyRequest(), BrokerOptions(enable_experiments=EXPERIMENT)) == ZONE_LOCAL


def test_proximity_without_the_experiment_is_global():
    options = BrokerOptions(topology_zone="z", topology_region="r")
    assert proximity_of(IdentifyRequest(topology_zone="z", topology_region="r"), options) == GLOBAL


def test_proximities_are_sorted_by_distance():
    assert list(PROXIMITIES) == [ZONE_LOCAL, REGION_LOCAL, GLOBAL] == sorted(PROXIMITIES)
