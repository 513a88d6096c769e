"""Draws the plan of a world from its seed.

Features and faults are drawn first: each exists in a half of the worlds, all of them in one world of eight, and no
fault in another one of eight. Then each node, player and connection draws its steps with a random generator of its
own, so another draw in one place changes nothing elsewhere.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from tests.simulation import draw_partition, knobs
from tests.simulation.auth.draw import with_auth
from tests.simulation.foreign import ITEMS
from tests.simulation.lookup.draw import with_lookupds
from tests.simulation.plan import Plan, Step
from tests.simulation.situations import with_situations

FAULTS: Final = (
    *("cut", "stall", "half-open", "slow", "double", "refuse", "suspend", "late"),
    *("leave", "admin", "delete", "kill", "power cut", "stop", "end disk", "clock", "disk faults"),
)
FEATURES: Final = (
    *("two nodes", "slices", "ephemeral", "deferred", "requeues", "touches", "batches", "max in flight"),
    *("foreign", "crowd", "node options", "consumer options"),
)
COSTLY: Final = "two nodes", "foreign"
"""Features that take most of the time of the worlds that have them; more than half of these worlds leave them out."""
CONSUMER_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "backoff_strategy": ("full-jitter",),
    "max_requeue_delay": (0.2,),
    "low_rdy_idle_timeout": (1.0,),
    "low_rdy_timeout": (1.0, 2.0),
    "rdy_redistribute_interval": (0.1, 1.0),
    "max_backoff_duration": (0.015, 0.3),
}
NODE_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "timing": ("nsqd",),
    "requeue_on_disconnect": (True,),
    "max_rdy_count": (1, 3, 100),
    "max_msg_timeout_ns": (3_000_000_000, 60_000_000_000),
    "max_channel_consumers": (1, 2),
    "max_msg_size": (200,),
    "e2e_processing_latency_percentiles": ([1.0, 0.5],),
    "output_buffer_timeout_ns": (30_000_000,),
    "queue_scan_selection_count": (1,),
    "topology_region": ("north",),
    "topology_zone": ("north-1",),
    "max_deflate_level": (1,),
    "e2e_processing_latency_window_time_ns": (1_000_000_000,),
    "log_level": ("debug",),
    "enable_experiments": (["topology-aware-consumption"],),
    "max_req_timeout_ns": (250_000_000,),
}
ADMINISTRATION: Final = (
    *("pause channel", "pause channel", "pause topic", "unpause channel", "unpause topic", "make channel"),
)
DELETIONS: Final = ("empty channel", "empty topic", "delete channel", "delete topic")
FATES: Final = ("finish",) * 14
NEAR_US: Final = (-60_000, 20_000)
"""How long before and after a step of a player most faults are."""
STEP_COUNTS: Final = (2, 3, 4, 8)
"""Steps of each player. Most worlds are small: many of them find more in the same time than a few large ones."""
DURATIONS_US: Final = (300_000, 1_000_000, 1_000_000, *[3_000_000] * 3, 8_000_000)
DOUBLE_FAULTS: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("reset", (), {"times": 1}),
    ("close_at", (5,), {"frame": 1}),
    ("close_at", (50,), {"frame": 5}),
    ("half_open", ("to_broker",), {}),
    ("half_open", ("to_client",), {}),
    ("delay", (0.001,), {"times": 5}),
    ("delay", (20,), {"times": 1}),
    ("bandwidth", (1_000,), {}),
    ("slices", (1,), {"times": 20}),
    ("wrong_type", (7,), {"times": 1}),
    ("drop", (), {"command": "FIN", "times": 1}),
    ("drop", (), {"command": "HEARTBEAT", "times": 3}),
    ("duplicate", (), {"times": 3}),
    ("redeliver", (0.5,), {"times": 3}),
    ("redeliver", (0,), {"times": 1}),
)


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    return _Drawing(str(seed)).plan()


class _Drawing:
    def __init__(self, seed: str) -> None:
        self._seed = seed
        random = self.random("world")
        self._faults = _swarm(random, FAULTS, none=True)
        self._features = _swarm(random, FEATURES, none=False)
        for name in COSTLY:
            if self.random(f"less {name}").random() < 0.7:
                self._features.discard(name)
        self._durability = random.choice(("memory", "memory", "nsqd", "fsync"))
        if self._durability != "memory":
            self._features.discard("ephemeral")  # the ledger of a disk does not model dropped messages
        self._duration_us = random.choice(DURATIONS_US)
        self._step_count = self.random("step count").choice(STEP_COUNTS)
        self._topics = ["t", "u"] + ["v#ephemeral"] * ("ephemeral" in self._features)
        self._channels = ["a", "b"] + ["c#ephemeral"] * ("ephemeral" in self._features)
        self._mem_queue_size = 10_000 if "ephemeral" in self._features else random.choice((0, 2, 10, 10_000))
        self._step_id = 0
        self._deferred_share = random.choice((0.2, 0.2, 1.0)) if "deferred" in self._features else 0.0
        self._publishes_us: list[int] = []
        self._commands_us: list[int] = []
        self._shared = "t", "a"
        self._has_partitions = random.random() < 1 / 12
        if self._has_partitions:
            # A broker that loses messages, and a network that drops single ones, are beyond what a slot log promises.
            self._faults -= {"double", "delete", "clock", "kill", "power cut", "stop", "end disk", "disk faults"}
            self._step_count = 10  # a slot log needs some messages
            self._is_exact = random.random() < 0.5
            if self._is_exact:
                self._faults -= {"stall", "half-open", "slow", "refuse", "suspend", "late"}

    def random(self, name: str) -> Random:
        """Return the random generator of one part of the plan."""
        return Random(f"{self._seed}/plan/{name}")

    def plan(self) -> Plan:
        random = self.random("players")
        node_names = ["node-1", "node-2"][: 1 + ("two nodes" in self._features)]
        nodes = {name: self._node(name) for name in node_names}
        players: dict[str, dict[str, Any]] = {}
        for number in range(1, random.choice((1, 1, 2)) + 1):
            players[f"producer-{number}"] = {"kind": "producer", "node": random.choice(node_names)}
        shared = self._shared = random.choice(self._topics), random.choice(self._channels)
        for number in range(1, random.choice((1, 1, 2, 3)) + 1 + ("crowd" in self._features)):
            topic, channel = random.choice(self._topics), random.choice(self._channels)
            if "crowd" in self._features:
                topic, channel = shared
            players[f"consumer-{number}"] = {"kind": "consumer", "topic": topic, "channel": channel}
        for number in range(1, random.randint(1, 3) + 1 if self._has_partitions else 1):
            players[f"partition-{number}"] = draw_partition.options(random, self.random, is_exact=self._is_exact)
        steps: list[Step] = []
        if "foreign" in self._features:
            players["foreign-1"] = {"kind": "foreign", "node": random.choice(node_names)}
            players["orderly-1"] = {"kind": "foreign", "node": random.choice(node_names)}
        draws = {
            "producer": self._producer,
            "consumer": self._consumer,
            "partition": lambda name: draw_partition.steps(
                name, self.random(name), self._times, is_exact=self._is_exact
            ),
            "foreign": self._foreign,
            "orderly": self._orderly,
        }
        for name, player in players.items():
            steps += draws["orderly" if name == "orderly-1" else player["kind"]](name)
        self._commands_us = [step.at_us for step in steps]
        for name in players:
            for node in node_names:
                steps += self._link(f"{name}/{node}")
            if players[name]["kind"] == "consumer":
                steps += [*self._leaves(name), *self._calls(name)]
            elif players[name]["kind"] == "producer":
                steps += self._cancels(name)
                players[name] |= self._linger(name)
        for name in node_names:
            node_steps = list(self._node_steps(name))
            node_steps += [*self._restarts_again(name, node_steps), *self._unpauses(name, node_steps)]
            clocks_us = [step.at_us for step in node_steps if step.values.get("clock_us", 0) < 0]
            steps += node_steps
            for producer, player in players.items():
                if player["kind"] == "producer" and player["node"] == name:
                    steps += self._publish_again(producer, clocks_us)
        steps.sort(key=lambda step: step.at_us)
        plan = Plan(self._seed, self._options(), nodes, players, tuple(self._with_late(steps)))
        if not self._has_partitions:
            plan = with_situations(plan, faults=self._faults, features=self._features)
        if self._has_partitions or any("max_channel_consumers" in options for options in nodes.values()):
            return plan  # a consumer that is refused does not find all brokers that are listed
        plan = with_lookupds(plan, swarm=partial(_swarm, none=True), times=self._times)
        return with_auth(plan, times=self._times)

    def _options(self) -> dict[str, Any]:
        random = self.random("options")
        identity = self._identity(random) | self._compression()
        drawn = self._options_with(identity, random)
        if identity.get("output_buffer_timeout") == -1:  # heartbeats bring the messages, before they time out
            drawn["msg_timeout_ms"] = 3000
            drawn["consumer"]["heartbeat_interval"] = 1.0
        return drawn

    def _options_with(self, identity: dict[str, Any], random: Random) -> dict[str, Any]:
        return {
            "topics": self._topics,
            "identity": identity,
            "delay_us": random.choice((0, 1_000, 50_000)),
            "slice_max": random.choice((1, 7, 100)) if "slices" in self._features and random.random() < 0.1 else 0,
            "has_double": "double" in self._faults,
            "msg_timeout_ms": random.choice((1000, 3000)),
            "idle_rounds": random.choice((10, *[0] * 24)),
            "is_exact": self._has_partitions and self._is_exact,
            "knobs": self._knobs(),
            "consumer": {
                "max_in_flight": random.choice((1, 2, 10, 200)),
                "heartbeat_interval": random.choice((1.0, 5.0)),
                "read_timeout": random.choice((10.0, 60.0)),
                "default_requeue_delay": random.choice((0.0, 0.5)),
                "backoff_multiplier": random.choice((0.01, 0.5)),
                "max_backoff_duration": random.choice((0.0, 1.0)),
                **self._consumer_options(random),
            },
        }

    def _compression(self) -> dict[str, Any]:
        random = self.random("compression")
        if self._has_partitions or "double" in self._faults or random.random() >= 0.2:
            return {}
        deflate = {"deflate": True, "deflate_level": random.choice((0, 1, 9))}
        return random.choice((deflate, {"snappy": True}))

    def _knobs(self) -> dict[str, int]:
        # The oracle does not model parts behind commands that come together or a start, nor a full outbox with commits.
        without = ["PART_COUNT"] * ("foreign" in self._features or self._durability != "memory")
        without += ["OUTBOX_SIZE_MAX"] * (self._durability == "fsync")
        return {name: value for name, value in knobs.draw(self.random("knobs")).items() if name not in without}

    def _identity(self, random: Random) -> dict[str, Any]:
        if "consumer options" not in self._features or self._has_partitions:
            return {}
        sample_rate = random.choice((0, 0, 50, 99)) if self._durability == "memory" else 0
        if self._durability != "memory" and self.random("sample of a disk").random() < 0.1:
            sample_rate = 50
        sizes = {"output_buffer_size": random.choice((0, 64, -1)), "output_buffer_timeout": random.choice((0, 100, -1))}
        return sizes | {"sample_rate": sample_rate, "topology_region": random.choice(("", "north", "south"))}

    def _consumer_options(self, random: Random) -> dict[str, Any]:
        if "consumer options" not in self._features:
            return {}
        return {name: random.choice(values) for name, values in CONSUMER_OPTIONS.items() if random.random() < 0.4}

    def _node(self, name: str) -> dict[str, Any]:
        random = self.random(name)
        options: dict[str, Any] = {
            "mem_queue_size": self._mem_queue_size,
            "msg_timeout_ns": 3_000_000_000,  # of foreign clients; with nsqd's minute, a world waits that long
            "max_msg_timeout_ns": 4_000_000_000,
        }
        if self._durability != "memory":
            options |= {
                "durability": self._durability,
                "disk_faults": "disk faults" in self._faults,
                "sync_every": random.choice((1, 5, 40)),
                "max_bytes_per_file": random.choice((150, 400, 2_000)),
                "sync_timeout_ns": random.choice((10, 100, 2_000)) * 1_000_000,
                "keep_deferred": random.random() < 0.5,
            }
        if "node options" in self._features and not self._has_partitions:
            options |= {name: random.choice(values) for name, values in NODE_OPTIONS.items() if random.random() < 0.2}
        return options

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _times(self, random: Random, count: int) -> Iterator[int]:
        """Yield times, some of them close to each other."""
        at_us = 0.0
        mean_us = self._duration_us / count
        for _ in range(count):
            at_us += random.expovariate(1) * random.choice((0, 0.05, 1, 3)) * mean_us
            yield round(min(at_us, 1.5 * self._duration_us))

    def _fault_times(self, random: Random, count: int) -> Iterator[int]:
        """Yield times of faults, most of them shortly before or after a step of a player."""
        for at_us in self._times(random, count) if count else ():
            if random.random() < 0.7:
                at_us = max(random.choice(self._commands_us) + random.randint(*NEAR_US), 0)
            yield at_us

    def _producer(self, name: str) -> Iterator[Step]:
        random = self.random(name)
        sizes = (0, 0, 300)
        for at_us in self._times(random, self._step_count):
            self._step_id += 1
            self._publishes_us.append(at_us)
            is_deferred = random.random() < self._deferred_share
            values = {
                "id": self._step_id,
                "topic": random.choice(self._topics),
                "count": random.choice((1, 1, 5)) if "batches" in self._features and not is_deferred else 1,
                "size": random.choice(sizes),
                "delay_ms": random.choice((0, 1, 500, 10_000)) if is_deferred else None,
            }
            yield Step(at_us, name, "publish", values)

    def _publish_again(self, name: str, times_us: list[int]) -> Iterator[Step]:
        """Publish when a clock was set back to the time of another publish."""
        random = self.random(f"{name}/again")
        for at_us in times_us:
            yield Step(at_us, name, "connect")
            self._step_id += 1
            values = {"id": self._step_id, "topic": random.choice(self._topics), "count": 1, "size": 0}
            yield Step(at_us + random.choice((0, 100, 1000)), name, "publish", values | {"delay_ms": None})

    def _consumer(self, name: str) -> Iterator[Step]:
        random = self.random(name)
        fates = list(FATES)
        if "requeues" in self._features:
            fates += ("requeue default", "requeue 0 backoff", "requeue 300 backoff", "requeue 0")
            fates += ("requeue 10000",) * (self.random(f"{name}/long").random() < 0.2)
        if "touches" in self._features:
            fates += ("keep", "touch", "touch", "keep")
        for at_us in self._times(random, self._step_count):
            chance = random.random()
            if chance < 0.1 and "max in flight" in self._features:
                yield Step(at_us, name, "max in flight", {"count": random.choice((0, 1, 5, 200))})
            else:
                values = {"count": random.choice((0, 1, 3, 100)), "kept": random.choice((0, 0, 1, 10))}
                yield Step(at_us, name, "handle", values | {"fates": random.choices(fates, k=4)})

    def _leaves(self, name: str) -> Iterator[Step]:
        random = self.random(f"{name}/leave")
        for at_us in self._fault_times(random, random.choice((1, 1, 3)) if "leave" in self._faults else 0):
            limit_ms = random.choice((0, 0, 300, 2_000))
            yield Step(at_us, name, "leave", {"limit_ms": limit_ms})
            if limit_ms:
                at_us += random.choice((1_000, 200_000))
                yield Step(at_us, name, "leave", {"limit_ms": random.choice((0, 100))})

    def _calls(self, name: str) -> Iterator[Step]:
        """Draw calls of a consumer that few programs make."""
        random = self.random(f"{name}/calls")
        verbs = random.choice((("confirm",), ("pause", "resume", "resume"), ("disconnect",), ()))
        for at_us in self._times(random, 4) if verbs else ():
            verb = random.choice(verbs)
            yield Step(at_us, name, verb, {"count": random.choice((0, 2, 100))} if verb == "confirm" else {})

    def _linger(self, name: str) -> dict[str, int]:
        random = self.random(f"{name}/linger")
        if random.random() >= 0.4:
            return {}
        return {"linger_ms": random.choice((1, 50, 2_000)), "linger_count": random.choice((1, 2, 100))}

    def _cancels(self, name: str) -> Iterator[Step]:
        """Draw publishes that are cancelled: before they are sent, while they linger, or without an answer."""
        random = self.random(f"{name}/cancel")
        for at_us in self._fault_times(random, random.choice((0, 0, 4))):
            if random.random() < 0.5:
                yield Step(at_us, name, "cancel")
            else:
                self._step_id += 1
                values = {"id": self._step_id, "topic": random.choice(self._topics), "count": 1, "size": 0}
                yield Step(at_us, name, "publish", values | {"delay_ms": None, "is_cancelled": True})

    def _orderly(self, name: str) -> Iterator[Step]:
        """Draw sessions that go through all states, each with commands that are legal in it."""
        random = self.random(name)
        place = random.choice((self._shared, (random.choice(self._topics), random.choice(self._channels))))
        names = dict(zip(("topic", "channel"), place, strict=True))
        verbs = self._sessions(random)
        for at_us in self._times(random, 8 + 2 * self._step_count):
            self._step_id += 1
            values = {"id": self._step_id, "number": random.randrange(8), **names}
            verb = next(verbs)
            yield Step(at_us, name, "close") if verb == "close" else Step(at_us, name, "send", {"what": verb, **values})

    def _sessions(self, random: Random) -> Iterator[str]:
        publishing, answering = ("PUB", "MPUB", "DPUB", "NOP"), ("FIN", "REQ", "TOUCH", "RDY", "REQ later")
        while True:
            # With fsync, all that follows a publish waits for its commit: the foreign client sends no SUB then.
            publishes = self._durability != "fsync" or random.random() < 0.3
            consumes = self._durability != "fsync" or not publishes
            others = publishing if publishes else ("NOP",)
            yield from random.choices(others, k=random.choice((0, 0, 3)))
            yield from random.choice(((), ("IDENTIFY",), ("IDENTIFY", "IDENTIFY")))
            yield from random.choices(others, k=random.choice((0, 2)))
            if consumes:
                yield from ("SUB", "RDY")
                yield from random.choices((*others, *answering, *answering), k=random.choice((2, 6)))
                yield from ("RDY", "CLS")
                yield from random.choices((*others, *answering), k=random.choice((0, 5)))
            yield "close"

    def _foreign(self, name: str) -> Iterator[Step]:
        random = self.random(name)
        topic, channel = random.choice(self._topics), random.choice(self._channels)
        polite = ("IDENTIFY", "SUB", "RDY", "FIN", "REQ", "TOUCH", "TOUCH", "PUB", "NOP", "RDY", "RDY")
        others = ("FIN of another", "REQ of another", "TOUCH of another", "CLS", "MPUB", "DPUB", "REQ later")
        for at_us in self._times(random, self._step_count):
            self._step_id += 1
            what = random.choice(random.choice((polite, polite, polite, others, tuple(ITEMS))))
            values = {"id": self._step_id, "number": random.randrange(8), "topic": topic, "channel": channel}
            yield Step(at_us, name, *(("close",) if random.random() < 0.03 else ("send", {"what": what, **values})))

    def _link(self, who: str) -> Iterator[Step]:
        random = self.random(who)
        kinds = [fault for fault in ("cut", "stall", "half-open", "slow", "double") if fault in self._faults]
        if not kinds or random.random() < 0.4:
            return
        for at_us in self._fault_times(random, random.choice((1, 2, 5))):
            kind = random.choice(kinds)
            ways = random.choice(("both", "both", "up", "down"))
            if kind == "double":
                name, words, limits = random.choice(DOUBLE_FAULTS)
                values = {"name": name, "words": list(words), "limits": limits, "clear": random.random() < 0.2}
                yield Step(at_us, who, "fault", values)
            elif kind == "stall":
                yield Step(at_us, who, kind, {"ways": ways, "for_us": random.choice((1_000, 1_000_000, 20_000_000))})
            elif kind == "slow":
                yield Step(at_us, who, kind, {"ways": ways, "ns_per_byte": random.choice((0, 10_000, 1_000_000))})
            else:
                yield Step(at_us, who, kind, {"ways": "both" if kind == "cut" else ways})

    def _node_steps(self, name: str) -> Iterator[Step]:
        draws: list[tuple[str, int, Callable[[str, Random, int], Iterator[Step]]]] = [
            ("admin", 12, self._admin),
            ("delete", 6, self._admin),
            ("refuse", 2, self._pause),
            ("suspend", 2, self._pause),
            *((kind, 3, self._restart) for kind in ("kill", "power cut", "stop", "end disk")),
            ("disk faults", 5, self._disk_fault),
        ]
        for kind, count, make in draws:
            if kind in self._faults and (self._durability != "memory" or kind not in ("end disk", "disk faults")):
                random = self.random(f"{name}/{kind}")
                for at_us in self._fault_times(random, random.randint(1, count)):
                    for step in make(kind, random, at_us):
                        yield Step(step.at_us, name, step.verb, step.values)

    def _admin(self, kind: str, random: Random, at_us: int) -> Iterator[Step]:
        place = random.choice((self._shared, (random.choice(self._topics), random.choice(self._channels))))
        verbs = DELETIONS if kind == "delete" else ADMINISTRATION
        yield Step(at_us, kind, random.choice(verbs), dict(zip(("topic", "channel"), place, strict=True)))

    def _pause(self, kind: str, random: Random, at_us: int) -> Iterator[Step]:
        yield Step(at_us, "", kind, {"for_us": random.choice((20_000, 100_000, 1_500_000, 10_000_000))})

    def _restart(self, kind: str, random: Random, at_us: int) -> Iterator[Step]:
        values = {"after": random.choice((0, 3, 20, 60))} if kind == "end disk" else {}
        yield Step(at_us, "", kind, values)
        if "disk faults" in self._faults and random.random() < 0.3:
            how = random.choice(("truncate", "remove", "zero"))
            yield Step(at_us, "", "damage disk", {"how": how, "number": random.randrange(1 << 16)})
        restart_us = at_us + random.choice((0, 1, 300_000, 3_000_000))
        clock_us = 0
        if "clock" in self._faults:
            # The clock shows once more the time of a publish: ids have that time in them.
            again_us = random.choice(self._publishes_us) - restart_us
            clock_us = random.choice((0, -1, -60_000_000, 5_000_000, again_us, again_us))
        yield Step(restart_us, "", "start", {"clock_us": clock_us} if clock_us else {})

    def _restarts_again(self, name: str, steps: list[Step]) -> Iterator[Step]:
        """End a broker again soon after its start: hardly anything has been read then, and few ids are given."""
        random = self.random(f"{name}/restarts again")
        kinds = sorted({"kill", "stop"} & self._faults)
        for step in steps:
            if step.verb == "start" and kinds and random.random() < 0.3:
                end_us = step.at_us + random.choice((1, 2_000, 100_000))
                yield Step(end_us, name, random.choice(kinds))
                yield Step(end_us + 1, name, "start")

    def _unpauses(self, name: str, steps: list[Step]) -> Iterator[Step]:
        """Have messages go from a topic to its channels while the disk fails, and perhaps end the broker then."""
        random = self.random(f"{name}/unpauses")
        for step in steps:
            if step.verb in {"fill disk", "fail disk"} and random.random() < 0.3:
                values = dict(zip(("topic", "channel"), self._shared, strict=True))
                yield Step(max(step.at_us - 200_000, 0), name, "pause topic", values)
                yield Step(step.at_us, name, "unpause topic", values)
                if "kill" in self._faults:
                    end_us = step.at_us + random.choice((1_000, 30_000, 300_000))
                    yield from (Step(end_us, name, "kill"), Step(end_us + 1, name, "start"))

    def _disk_fault(self, kind: str, random: Random, at_us: int) -> Iterator[Step]:
        if random.random() < 0.5:
            yield Step(at_us, "", "fill disk", {"room": random.choice((0, 10, 500))})
        else:
            error = random.choice((errno.EIO, errno.EMFILE, errno.EACCES))
            values = {"error": error, "after": random.choice((0, 1, 5, 20)), "times": random.choice((1, 3, 100))}
            yield Step(at_us, "", "fail disk", values)
        yield Step(at_us + random.choice((1_000, 500_000, 5_000_000)), "", "recover disk")

    def _with_late(self, steps: list[Step]) -> Iterator[Step]:
        random = self.random("late")
        for step in steps:
            is_late = "late" in self._faults and random.random() < 0.03
            yield Step(step.at_us, step.who, step.verb, step.values | {"late": True}) if is_late else step


def _swarm(random: Random, names: tuple[str, ...], *, none: bool) -> set[str]:
    chance = random.random()
    if chance < 1 / 8:
        return set(names)
    if none and chance < 1 / 4:
        return set()
    return {name for name in names if random.random() < 0.5}
