"""nsqlookupds in worlds: plans with them, the reference registry, and faults that only they show."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from nsqkit.consumer.nodes import Nodes
from nsqkit.lookupd.registry import Registry
from nsqkit.wire.lookup import LookupCommand
from tests.simulation.broken import Broken
from tests.simulation.draw import draw
from tests.simulation.lookup.draw import FAULTS, HOW
from tests.simulation.lookup.registry_oracle import RegistryOracle
from tests.simulation.plan import Plan, PlanError, Step, check, read_plan
from tests.simulation.shrink import shrink
from tests.simulation.trace import trace
from tests.simulation.world import World

IDENTIFY = LookupCommand(b"IDENTIFY", [], b'{"broadcast_address": "n", "tcp_port": 1, "http_port": 2}')
PUBLISH = {"id": 1, "topic": "t", "count": 1, "size": 0, "delay_ms": None}


def plan_of(*steps: Step, count: int = 1) -> Plan:
    """Return a plan with a broker, nsqlookupds, a producer, and a consumer that uses all nsqlookupds."""
    names = [f"lookupd-{number}" for number in range(1, count + 1)]
    return Plan(
        "1",
        {"topics": ["t"], "consumer": {"lookupd_poll_interval": 1.0}},
        {"node-1": {}},
        {
            "producer-1": {"kind": "producer", "node": "node-1"},
            "consumer-1": {"kind": "consumer", "topic": "t", "channel": "a", "lookupds": names},
        },
        (Step(0, "producer-1", "connect"), Step(1_000, "producer-1", "publish", PUBLISH), *steps),
        {name: {"tombstone_lifetime_ns": 3_000_000_000} for name in names},
    )


# ---- plans -------------------------------------------------------------------------------------------------------


def test_plan_without_nsqlookupds_stays_readable():
    plan = attrs.evolve(plan_of(), lookupds={}, players={"producer-1": {"kind": "producer", "node": "node-1"}})
    assert "lookupds" not in plan.to_json()
    assert read_plan(plan.to_json()) == plan


def test_plan_with_nsqlookupds_replays_from_its_document():
    plan = plan_of(Step(2_000, "node-1/lookupd-1", "cut"), Step(3_000, "lookupd-1", "kill"))
    assert read_plan(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("who", "verb", "reason"),
    [
        ("lookupd-2", "kill", "names 'lookupd-2'"),
        ("lookupd-1", "publish", "lookupd-1 has no action 'publish'"),
        ("lookupd-1/node-1", "cut", "names 'lookupd-1/node-1'"),
    ],
)
def test_step_of_an_nsqlookupd_is_checked(who, verb, reason):
    with pytest.raises(PlanError, match=reason):
        check(plan_of(Step(2_000, who, verb)))


def test_player_names_nsqlookupds_of_the_plan():
    with pytest.raises(PlanError, match="player consumer-1 uses 'lookupd-1'"):
        check(attrs.evolve(plan_of(), lookupds={}))


def test_some_of_the_worlds_have_nsqlookupds_with_all_faults():
    plans = [plan for seed in range(400) if (plan := draw(seed)).lookupds]
    assert 40 <= len(plans) <= 90
    steps = [step for plan in plans for step in plan.steps]
    names = {step.verb for step in steps if step.who.startswith("lookupd-")}
    links = {step.verb for step in steps if "/lookupd-" in step.who}
    administration = {"tombstone topic", "delete topic", "delete channel", "make topic", "make channel"}
    assert names == administration | {"start", "raw", "list", *FAULTS[4:]} - {"tombstones", "deletion", "move"}
    assert links == {"inject", *FAULTS[:4]}
    assert {step.values["how"] for step in steps if step.verb == "answers"} == set(HOW)
    assert any(step.verb == "move" for step in steps)
    assert Counter(len(plan.lookupds) for plan in plans).keys() == {1, 2, 3}


def test_shrinker_takes_out_nsqlookupds():
    small = shrink(plan_of(count=3), fails=lambda plan: "one" if "lookupd-2" in plan.lookupds else None)
    assert small.lookupds.keys() == {"lookupd-2"}
    assert small.steps == ()


# ---- worlds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Step(500_000, "lookupd-1", "kill"), Step(600_000, "lookupd-1", "start")),
        (Step(500_000, "node-1", "move", {"host": "other", "tcp_port": 1}), Step(500_000, "node-1", "stop")),
        (Step(2_000, "node-1/lookupd-1", "half-open", {"ways": "both"}),),
        (Step(0, "lookupd-1", "answers", {"how": "garbage", "for_us": 9_000_000}), Step(8_000_000, "node-1", "kill")),
        (Step(100_000, "lookupd-1", "delete topic", {"topic": "t", "channel": ""}),),
    ],
    ids=["no fault", "its restart", "a broker that moves", "a silent network", "bad answers", "a deleted topic"],
)
def test_consumer_finds_brokers_by_nsqlookupds(steps):
    World(plan_of(*steps)).run()


def test_tombstone_hides_a_broker_for_its_lifetime():
    hidden = {"topic": "t", "channel": "", "node": "node-1"}
    lines, error = trace(plan_of(Step(100_000, "lookupd-1", "tombstone topic", hidden)))
    assert error is None
    answers = [(float(line.split()[0]), line) for line in lines if "consumer-1 ◀ lookupd-1" in line]
    during = [line for at, line in answers if 0.2 < at < 3.1]
    assert during
    assert not any('"node-1"' in line for line in during)
    assert any('"node-1"' in line for at, line in answers if at > 3.2)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Registry, "is_tombstoned", lambda self, peer, topic, now_ns: False),
        (Registry, "channels", lambda self, topic: []),
        (Nodes, "set_listed", lambda self, addresses: []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_lookup_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken, match=r"invariant 2[18]"):
        for seed in range(400):
            if (plan := draw(seed)).lookupds:
                World(plan).run()


# ---- the reference registry ----------------------------------------------------------------------------------------


def registry_of(*lines: str) -> RegistryOracle:
    oracle = RegistryOracle(inactive_ns=100, tombstone_ns=10)
    oracle.command("link", IDENTIFY, 0)
    for line in lines:
        verb, *params = line.encode().split()
        oracle.command("link", LookupCommand(verb, params), 0)
    return oracle


def test_channel_registers_its_topic():
    oracle = registry_of("REGISTER t c")
    assert (oracle.topics, oracle.channels, oracle.lookup(b"t", 0)) == ({b"t"}, {(b"t", b"c")}, ["n:1"])


def test_unregistered_channel_stays_unless_it_is_ephemeral():
    oracle = registry_of("REGISTER t c", "REGISTER t e#ephemeral", "UNREGISTER t c", "UNREGISTER t e#ephemeral")
    assert (oracle.topics, oracle.channels, oracle.lookup(b"t", 0)) == ({b"t"}, {(b"t", b"c")}, ["n:1"])


def test_unregistered_topic_takes_the_channels_of_the_peer_with_it():
    oracle = registry_of("REGISTER t c", "UNREGISTER t")
    assert (oracle.topics, oracle.lookup(b"t", 0), oracle.peers["link"].channels) == ({b"t"}, [], set())


def test_peer_is_listed_until_it_is_inactive_or_gone():
    oracle = registry_of("REGISTER t")
    assert (oracle.lookup(b"t", 100), oracle.lookup(b"t", 101)) == (["n:1"], [])
    oracle.closed("link")
    assert (oracle.lookup(b"t", 0), oracle.topics) == ([], {b"t"})


def test_tombstone_ends_with_its_lifetime():
    oracle = registry_of("REGISTER t")
    oracle.tombstone(b"t", "n:2", 5)
    assert (oracle.lookup(b"t", 14), oracle.lookup(b"t", 15)) == ([], ["n:1"])


def test_deleted_names_are_withdrawn_until_they_are_registered_again():
    oracle = registry_of("REGISTER t c")
    oracle.delete_topic(b"t")
    assert oracle.peers["link"].withdrawn == {(b"t", b""), (b"t", b"c")}
    oracle.command("link", LookupCommand(b"REGISTER", [b"t", b"c"]), 0)
    assert (oracle.peers["link"].withdrawn, oracle.lookup(b"t", 0)) == (set(), ["n:1"])
