"""Draws the plan of a driver world from its seed: as ``tests.simulation.draw``, a swarm of features and faults.

Worlds are small, two to five clients and some forty publishes, since many small ones find more than a few large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from tests.simulation import knobs
from tests.simulation.driver import draw_rare, draw_threads
from tests.simulation.driver.ailments import ailments
from tests.simulation.driver.draw_auth import with_auth
from tests.simulation.driver.draw_partitions import with_partitions
from tests.simulation.driver.raw import COMMANDS, MAGICS
from tests.simulation.plan import Plan, Step

FEATURES: Final = (
    *("two nodes", "two producers", "http producer", "linger", "window", "attempts", "timeouts", "cancel"),
    *("two channels", "two topics", "max in flight", "pause", "leave", "snappy", "deferred", "large"),
    *("raw", "operator", "lookupds", "disconnect"),
)
LARGE_FEATURES: Final = ("two nodes", "two producers", "two channels", "two topics", "http producer", "lookupds")
FAULTS: Final = (
    *("cut", "stall", "half-open", "slow", "mute", "refuse", "partition"),
    *("kill", "power cut", "stop", "clock", "fill disk", "fail disk", "slow disk"),
)
MODES: Final = ("run", "run", "run", "run", "iterate", "batches", "run batches", "threads", "plain")
FATES: Final = ("slow", "raise", "hang", "touch", "finish twice", "requeue", "later")
DURATIONS_US: Final = (100_000, 1_000_000, 3_000_000)
LATE_TOPICS: Final = ("v", "w")
"""Topics that publishes create, each with one channel, which its consumer creates."""


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    return with_partitions(draw_threads.with_threads(_Drawing(str(seed)).plan()))


class _Drawing:
    def __init__(self, seed: str) -> None:
        self._seed = seed
        random = self._random("world")
        self._features = _swarm(random, FEATURES, none=False)
        # Each of these makes a world longer by a third, nsqlookupds by much more, so they are rarer.
        shares = {"lookupds": 0.8, "two nodes": 0.4}
        self._features -= {feature for feature in LARGE_FEATURES if random.random() < shares.get(feature, 0.6)}
        self._faults = _swarm(random, FAULTS, none=True)
        self._durability = random.choice(("memory", "nsqd", "fsync", "fsync"))
        if self._durability == "memory":
            self._faults -= {"power cut", "fill disk", "fail disk", "slow disk"}
        self._duration_us = random.choice(DURATIONS_US)
        self._topics = {
            topic: ["a", "b"][: 1 + ("two channels" in self._features)]
            for topic in ("t", "u")[: 1 + ("two topics" in self._features)]
        }

        count = random.choice((1, 2)) if "lookupds" in self._features else 0
        self._lookupds = ["lookupd-1", "lookupd-2"][:count]
        self._haven = self._draw_haven(self._random("haven"))
        self._late: list[str] = []
        if not self._haven and self._random("late topics").random() < 0.12:
            self._late = list(LATE_TOPICS)
            self._topics = {topic: ["a"] for topic in ("t", *LATE_TOPICS)}
        stops = "stop" in self._faults and not self._haven and self._durability != "memory"
        self._stops_batch = stops and self._random("stops batch").random() < 0.3
        if self._stops_batch:  # others may leave a part of a batch
            self._faults -= {"kill", "power cut", "fill disk", "fail disk"}
            self._features |= {"http producer"} if self._some(self._random("stops batch/http")) else set()
        random = self._random("rare")
        rare = _swarm(random, draw_rare.FEATURES, none=False)
        shares = draw_rare.SHARES
        self._features |= {name for name in draw_rare.FEATURES if random.random() < shares.get(name, 1.0)} & rare
        if self._faults and self._some(random):
            self._faults.add("unanswered")

    def _draw_haven(self, random: Random) -> str:
        """Return the one of three nodes that has no fault, in some worlds, while the others have many; else nothing."""
        if random.random() >= 0.1:
            return ""
        self._features -= {"two channels", "two topics", "timeouts", "large", "operator"}
        self._features |= {"attempts", *(["http producer"] * self._some(random, 0.6))}
        self._topics, self._lookupds = {"t": ["a"]}, []
        self._durability = random.choice(("memory", "nsqd", "fsync", "fsync", "fsync", "fsync"))
        return random.choice(("nsqd-1", "nsqd-2", "nsqd-3"))

    def _random(self, name: str) -> Random:
        return Random(f"{self._seed}/{name}")

    def plan(self) -> Plan:
        count = 3 if self._haven else 1 + ("two nodes" in self._features)
        nodes = {name: self._node(name) for name in ("nsqd-1", "nsqd-2", "nsqd-3")[:count]}
        players = dict(self._players(list(nodes)))
        steps = [step for name, player in players.items() for step in self._steps_of(name, player)]
        for node, options in nodes.items():
            steps += self._node_steps(node) if not self._haven else self._ailments(node, options, list(players))
        for lookupd in self._lookupds:
            steps += self._lookupd_steps(lookupd)
        links = [(name, node) for name, player in players.items() for node in player["nodes"] or nodes]
        links *= not self._haven
        for name, node in links:
            steps += self._link_steps(name, node)
        if "unanswered" in self._faults:
            who = [*self._lookupds, *(f"{name}/{node}" for name, node in links)]
            steps += draw_rare.unanswered(self._random("unanswered"), who, self._duration_us)
        steps += draw_rare.slow_lists(self._random("slow lists"), players, self._duration_us)
        random = self._random("partly taken")
        if links and {"slow", "half-open"} <= self._faults and self._some(random, 0.2):
            steps += draw_rare.partly_taken(random, list(nodes), self._topics, self._duration_us)
        random = self._random("loop")
        dead = [player["dead_letters"]["topic"] for player in players.values() if "dead_letters" in player]
        world_options: dict[str, Any] = {
            "size": "driver",
            "topics": self._topics | {topic: ["a"] for topic in dead},
            "backend": random.choice(("asyncio", "asyncio", "trio")),
            "order": random.choice(("shuffled", "shuffled", "in order")),
            "knobs": knobs.draw(self._random("knobs")) | knobs.draw_reads(self._random("reads")),
            **({"late": self._late} if self._late else {}),
        }
        of_lookupds: dict[str, Any] = {}
        random = self._random("rare loop")
        if "relisting" in self._features and self._lookupds:
            relisting = draw_rare.relisting(random, self._lookupds, list(nodes), self._duration_us)
            world_options["relisting"], of_lookupds = relisting[:2]
            steps += relisting[2]
        for phase in ("reconfiguring", "limiting"):
            if self._lookupds and self._some(self._random(phase)):
                world_options[phase] = True
        if "pipeline" in self._features and self._some(random, 0.7):
            world_options["knobs"] = {**world_options["knobs"], "OUTBOX_SIZE_MAX": random.choice((300, 2_000))}
        lookupds = dict.fromkeys(self._lookupds, of_lookupds)
        if self._stops_batch:
            random = self._random("stopped batch")
            world_options["knobs"] = {**world_options["knobs"], "PART_COUNT_MAX": 1}
            over_http = "http-1" in players and self._some(random)
            steps += draw_rare.stopped_batch(random, list(nodes), self._topics, over_http=over_http)
        steps = draw_rare.near_publishes(self._random("near publishes"), steps)
        sorted_steps = tuple(sorted(steps, key=lambda step: step.at_us))
        plan = Plan(self._seed, world_options, nodes, players, sorted_steps, lookupds)
        return plan if self._haven else with_auth(self._random("auth"), plan, self._duration_us)

    def _some(self, random: Random, share: float = 0.5) -> bool:
        return random.random() < share

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> dict[str, Any]:
        random = self._random(name)
        return {
            "durability": self._durability,
            "mem_queue_size": random.choice((0, 2, 10, 10_000)),
            "sync_every": random.choice((1, 5, 2500)),
            "max_bytes_per_file": random.choice((300, 2_000, 1 << 20)),
            "msg_timeout_ns": random.choice((1, 2, 5)) * 10**9,
            "timing": random.choice(("exact", "exact", "nsqd")),
            "keep_deferred": self._some(random),
            "requeue_on_disconnect": self._some(random),
            "lookupds": self._lookupds,
            **({"max_msg_timeout_ns": 10 * 10**9} if self._random("limits").random() < 0.5 else {}),
            **({"node_id": 7} if self._random("node ids").random() < 0.3 else {}),
            **draw_rare.reports(self._random(f"{name}/statsd")),
            **({"max_msg_size": 2_500} if "large" in self._features else {}),
        }

    def _lookupd_steps(self, name: str) -> Iterator[Step]:
        random = self._random(f"{name}/steps")
        at_us = self._times(random)
        if {"kill", "stop"} & self._faults:
            begin = at_us()
            yield Step(begin, name, random.choice(("kill", "stop")))
            yield Step(begin + random.choice((1_000, 700_000)), name, "start")
        for verb in ("refuse", "partition"):
            if verb in self._faults and self._some(random):
                yield Step(at_us(), name, verb, {"for_us": random.choice((100_000, 3_000_000))})

    def _node_steps(self, name: str) -> Iterator[Step]:
        random = self._random(f"{name}/steps")
        at_us = self._times(random)
        for verb in ("kill", "power cut", "stop"):
            if verb in self._faults:
                for _ in range(random.choice((1, 1, 2))):
                    begin = at_us()
                    how = {"in_order": True} if self._some(random) else {}
                    yield Step(begin, name, verb, how if verb == "power cut" else {})
                    skew = {"skew_us": random.choice((-2_000_000, 500_000))} if "clock" in self._faults else {}
                    yield Step(begin + random.choice((1_000, 50_000, 700_000)), name, "start", skew)
        if "fill disk" in self._faults:
            yield Step(at_us(), name, "fill disk", {"after": random.choice((0, 10, 200))})
            yield Step(at_us(), name, "recover disk")
        if "fail disk" in self._faults:
            for _ in range(random.choice((1, 3))):
                values = {"after": random.choice((0, 2, 20)), "count": random.choice((1, 5)), "error": "EIO"}
                yield Step(at_us(), name, "fail disk", values)
            syncs = self._random(f"{name}/syncs")
            if self._some(syncs):
                yield Step(self._times(syncs)(), name, "fail disk", {"syncs": syncs.choice((1, 5, 1_000))})
        if "slow disk" in self._faults:
            yield Step(at_us(), name, "slow disk", {"for_us": random.choice((300_000, 2_000_000))})
        if self._late and self._durability != "memory":
            yield from self._late_faults(name)
        if "operator" in self._features:
            yield from self._operations(name, random)
        if "refuse" in self._faults:
            yield Step(at_us(), name, "refuse", {"for_us": random.choice((100_000, 2_000_000))})
        if "partition" in self._faults:
            yield Step(at_us(), name, "partition", {"for_us": random.choice((200_000, 3_000_000))})

    def _operations(self, name: str, random: Random) -> Iterator[Step]:
        at_us = self._times(random)
        for _ in range(random.choice((1, 2))):
            topic = random.choice(list(self._topics))
            values = {"topic": topic, "channel": random.choice(self._topics[topic])}
            verb = random.choice(("pause channel", "pause topic", "stats"))
            begin = at_us()
            yield Step(begin, name, verb, {} if verb == "stats" else values)
            if verb != "stats":
                yield Step(begin + random.choice((1_000, 300_000)), name, f"un{verb}", values)
        random = self._random(f"{name}/removals")
        for _ in range(random.choice((1, 3)) if self._some(random, 0.4) else 0):
            topic = random.choice(list(self._topics))
            values = {"topic": topic, "channel": random.choice(self._topics[topic])}
            verb = random.choice(("empty channel", "empty channel", "empty topic", "delete channel", "delete topic"))
            yield Step(self._times(random)(), name, verb, values)

    def _ailments(self, node: str, options: dict[str, Any], players: list[str]) -> list[Step]:
        random = self._random(f"{node}/ailments")
        return [] if node == self._haven else list(ailments(random, node, options, players, self._duration_us))

    def _late_faults(self, name: str) -> Iterator[Step]:
        """Draw faults that the files with the names of new topics meet."""
        begin = self._random("late topics/begin").randint(1, self._duration_us)
        random = self._random(f"{name}/late topics")
        if self._some(random, 0.3):
            yield Step(begin, name, "slow disk", {"for_us": 300_000})
        if "fail disk" in self._faults and self._some(random):
            yield Step(begin, name, "fail disk", {"syncs": random.choice((1, 2))})

    def _times(self, random: Random) -> Callable[[], int]:
        return lambda: random.randint(1, self._duration_us)

    # ---- players -------------------------------------------------------------------------------------------------

    def _players(self, nodes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in ("producer-1", "producer-2")[: 1 + ("two producers" in self._features)]:
            yield name, self._producer(name, nodes)
        if "http producer" in self._features:
            options = {"publish_attempts": 3} if "attempts" in self._features else {}
            yield "http-1", {"kind": "http producer", "nodes": nodes, **options}
        if "raw" in self._features:
            yield "raw-1", {"kind": "raw", "nodes": nodes}
        if "pipeline" in self._features:
            yield "pipeline-1", {"kind": "raw", "nodes": nodes}
        number = 0
        for topic, channels in self._topics.items():
            if topic in self._late and (self._lookupds or self._some(self._random(f"{topic}/consumer"), 0.7)):
                continue  # one comes at the end
            for channel in channels:
                number += 1
                name = f"consumer-{number}"
                player = self._consumer(name, nodes, topic, channel)
                random = self._random(f"{name}/more")
                more, fates = draw_rare.consumer_options(random, self._features, player, f"dead-{number}")
                more |= draw_rare.apart(self._random(f"{name}/apart"), player)
                yield name, player | more | {"fates": player["fates"] + fates}

    def _producer(self, name: str, nodes: list[str]) -> dict[str, Any]:
        random = self._random(name)
        options: dict[str, Any] = {"kind": "producer", "nodes": nodes, **self._connection(name, random)}
        options["connect_timeout"] = random.choice((0.3, 2.0))
        if "linger" in self._features:
            options |= draw_rare.lingering(random, self._random(f"{name}/linger bytes"))
        if "window" in self._features:
            options["max_outstanding_bytes"] = random.choice((50, 300))
        if "attempts" in self._features:
            options["publish_attempts"] = random.choice((2, 5))
        if "timeouts" in self._features:
            options["publish_timeout"] = random.choice((0.05, 1.0))
        if len(nodes) > 1:
            options["policy"] = random.choice(("round-robin", "random", "least-busy", "by-key"))
        if self._haven:  # those that fail are there again while others are tried
            options |= {"publish_attempts": random.choice((3, 3, 5)), "reconnect_delay_max": 0.1}
            options["policy"] = random.choice((options["policy"], "by-key"))
        return options

    def _connection(self, name: str, random: Random) -> dict[str, Any]:
        heartbeat_interval = random.choice((1.0, 3.0))
        options: dict[str, Any] = {
            "heartbeat_interval": heartbeat_interval,
            "read_timeout": 2 * heartbeat_interval,
            "reconnect_delay_max": random.choice((0.5, 3.0)),
        }
        if "snappy" in self._features:
            compression = random.choice(("snappy", "deflate"))
            if self._some(self._random(f"{name}/compression")):  # the bytes of the others are read
                options[compression] = True
        return options

    def _consumer(self, name: str, nodes: list[str], topic: str, channel: str) -> dict[str, Any]:
        random = self._random(name)
        mode = random.choice(MODES)
        options: dict[str, Any] = {"kind": "consumer", "nodes": nodes, "topic": topic, "channel": channel, "mode": mode}
        if self._lookupds:
            options |= {"nodes": [], "lookupds": self._lookupds, "lookupd_poll_interval": random.choice((0.2, 1.0))}
            options["lookupd_poll_timeout"] = 1.0
        options |= self._connection(name, random)
        options["max_in_flight"] = random.choice((1, 2, 5, 20))
        options["default_requeue_delay"] = random.choice((0.0, 0.1, 0.5))
        options["max_requeue_delay"] = 2.0
        options["max_backoff_duration"] = random.choice((0.0, 0.5, 4.0))
        options["backoff_multiplier"] = 0.2
        options["max_attempts"] = random.choice((0, 2, 5))
        options["close_timeout"] = random.choice((0.1, 1.0, 5.0))
        options["low_rdy_idle_timeout"] = options["low_rdy_timeout"] = 1.0
        options["rdy_redistribute_interval"] = 0.5
        if self._some(random, 0.3):
            options["msg_timeout"] = 1.0
        fates = [fate for fate in FATES if self._some(random, 0.3)]
        options["fates"] = ["finish"] * random.choice((1, 2, 6)) + fates
        if mode in {"run", "threads", "plain"}:
            options["run"] = self._handling(random, mode)
            if "auto_touch" in options["run"]:
                options["fates"] += ["hang"] * 2
        elif mode != "iterate":
            options["batch"] = {"max_messages": random.choice((1, 3)), "max_wait": random.choice((0.0, 0.2))}
            if mode == "run batches":
                options["run"] = {"concurrency": random.choice((1, 2))}
        return options | draw_rare.rare_options(self._random(f"{name}/rare"), options)

    def _handling(self, random: Random, mode: str) -> dict[str, Any]:
        handling: dict[str, Any] = {"concurrency": random.choice((1, 2, 4))}
        if self._some(random, 0.3):
            handling["lanes"] = 3
        if mode == "run":
            for name in ("auto_touch", "cancel_at_timeout"):
                if self._some(random, 0.4):
                    handling[name] = True
        return handling

    # ---- the steps of players ------------------------------------------------------------------------------------

    def _steps_of(self, name: str, player: dict[str, Any]) -> Iterator[Step]:
        random = self._random(f"{name}/steps")
        if player["kind"] == "consumer":
            yield from self._consumer_steps(name, player, random)
            return
        if name == "pipeline-1":
            yield from draw_rare.pipelines(random, name, self._duration_us)
            return
        if player["kind"] == "raw":
            yield from self._raw_steps(name, random)
            return
        hows = ["publish"] * 4 + ["multi"]
        if player["kind"] == "http producer":
            hows += ["multi lines"]
        if "deferred" in self._features:
            hows += ["deferred"]
        if player["kind"] == "producer":
            hows += ["publish nowait", "multi nowait"] + ["publish nowait"] * (4 * ("linger" in self._features))
        at_us = self._times(random)
        for _ in range(random.choice((2, 3, 6)) if player["kind"] == "producer" else 2):
            yield from self._burst(name, random, at_us(), hows)
        if self._late:
            yield from self._late_publishes(name)
        if "leave" in self._features and player["kind"] == "producer" and self._some(random):
            yield Step(at_us(), name, "leave", {"visit": random.random() < 0.3})
        if "linger_max_bytes" in player:
            yield from draw_rare.full_batches(self._random(f"{name}/full"), name, self._topics, self._duration_us)
        if {"linger", "large"} <= self._features and player["kind"] == "producer":
            refused = self._random(f"{name}/refused")
            yield from draw_rare.refused_batch(refused, name, player["nodes"], self._topics, self._duration_us)
        if "cancel" in self._features and self._some(random):
            yield Step(at_us(), name, "cancel")
        refused = self._random(f"{name}/refused publishes")
        if "fail disk" in self._faults and "publish_attempts" in player and not self._haven and self._some(refused):
            nodes, may_cut = player["nodes"], "cut" in self._faults
            yield from draw_rare.refused_publishes(
                refused, name, nodes, self._topics, self._duration_us, may_cut=may_cut
            )

    def _raw_steps(self, name: str, random: Random) -> Iterator[Step]:
        at_us = self._times(random)
        for _ in range(random.choice((2, 5))):
            values: dict[str, Any] = {
                "commands": [random.randrange(len(COMMANDS)) for _ in range(random.choice((0, 1, 3, 6)))],
                "magic": random.randrange(len(MAGICS)),
                "which": random.randrange(2),
                "for_us": random.choice((0, 2_000, 1_500_000)),
                "reads": self._some(random),
                "resets": self._some(random),
            }
            if self._some(random, 0.2):
                values["port"] = 4151
            yield Step(at_us(), name, "send", values)
        if self._some(random, 0.2):
            yield Step(at_us(), name, "send", {"which": random.randrange(2), "stuck": True})
        random = self._random(f"{name}/others")
        if self._some(random, 0.1):
            yield Step(at_us(), name, "send", {"which": random.randrange(2), "stuck": "sends"})
        if "large" in self._features and self._some(random, 0.3):
            yield Step(at_us(), name, "send", {"which": random.randrange(2), "over_limit": random.choice((1, 1, 900))})

    def _burst(self, name: str, random: Random, at_us: int, hows: list[str]) -> Iterator[Step]:
        for _ in range(random.choice((1, 1, 2, 5) if "linger" in self._features else (1, 1, 3))):
            values: dict[str, Any] = {"how": random.choice(hows), "topic": random.choice(list(self._topics))}
            values |= {"count": random.choice((1, 2, 5))} if "multi" in values["how"] else {}
            if "deferred" in values["how"]:
                values["delay_us"] = random.choice((0, 200_000, 1_500_000))
                if self._some(self._random(f"{name}/{at_us}/delay"), 0.1):
                    values["delay_us"] = 12_000_000
            if "large" in self._features and self._some(random, 0.2):
                values["size"] = random.choice((300, 6_000))
            if "cancel" in self._features and self._some(random, 0.3):
                values["cancel_us"] = random.choice((1, 300, 700, 1_500, 50_000))
            if "cancel" in self._features and self._some(self._random(f"{name}/{at_us}/cancel"), 0.3):
                values["cancel_at_answer"] = True
            if "timeouts" in self._features and self._some(random, 0.3) and name.startswith("producer"):
                values["timeout_us"] = random.choice((1_000, 20_000, 500_000))
            if self._some(random, 0.2) and name.startswith("producer") and "nowait" not in values["how"]:
                values["key"] = random.choice(("k", "l"))
            elif self._haven and name.startswith("producer"):  # another attempt chooses by it as well
                values |= {"how": values["how"].removesuffix(" nowait"), "key": random.choice("mnopqr")}
            yield Step(at_us, name, "publish", values)

    def _late_publishes(self, name: str) -> Iterator[Step]:
        """Draw publishes of all players that create topics one shortly after the other."""
        begin = self._random("late topics/begin").randint(1, self._duration_us)
        random = self._random(f"{name}/late topics")
        for _ in range(random.choice((1, 3))):
            values = {"how": "publish", "topic": random.choice(self._late)}
            yield Step(begin + random.choice((0, 1_000, 2_000, 5_000, 50_000)), name, "publish", values)

    def _consumer_steps(self, name: str, player: dict[str, Any], random: Random) -> Iterator[Step]:
        at_us = self._times(random)
        if "pause" in self._features and self._some(random):
            begin = at_us()
            yield Step(begin, name, "pause")
            yield Step(begin + random.choice((10_000, 1_000_000)), name, "resume")
        if "max in flight" in self._features:
            for _ in range(random.choice((1, 3))):
                yield Step(at_us(), name, "max in flight", {"count": random.choice((0, 1, 2, 30))})
        if "disconnect" in self._features and self._some(random):
            begin = at_us()
            yield Step(begin, name, "disconnect")
            yield Step(begin + random.choice((100, 300_000)), name, "connect")
        rare = self._random(f"{name}/rare steps")
        if "disconnect" in self._features and self._some(rare, 0.4):
            yield Step(rare.randint(1, self._duration_us), name, "connect wrong")
        if self._some(rare, 0.3):
            for _ in range(rare.choice((1, 3, 6))):
                yield Step(rare.randint(1, self._duration_us), name, "receive again")
        if "leave" in self._features:
            for _ in range(random.choice((0, 1, 2))):
                values = {"how": random.choice(("stop", "cancel")), "for_us": random.choice((0, 100_000, 2_000_000))}
                yield Step(at_us(), name, "leave", values | {"visit": rare.random() < 0.3})
        if player.get("confirms"):  # it may hold messages that it has touched and not finished
            for _ in range(2):
                yield Step(rare.randint(1, self._duration_us), name, "leave", {"how": "stop"})

    def _link_steps(self, player: str, node: str) -> Iterator[Step]:
        random = self._random(f"{player}/{node}/steps")
        at_us = self._times(random)
        who = f"{player}/{node}"
        for verb in ("cut", "stall", "half-open", "slow", "mute"):
            if verb not in self._faults or self._some(random, 0.4):
                continue
            for _ in range(random.choice((1, 1, 3))):
                values: dict[str, Any] = {}
                if verb in {"stall", "mute"}:
                    values["for_us"] = random.choice((10_000, 300_000, 3_000_000))
                elif verb == "half-open":
                    values = {"sender": random.choice(("player", "node")), "both": self._some(random)}
                elif verb == "slow":
                    values = {"size": random.choice((7, 30, 100)), "pause_us": random.choice((0, 100, 20_000))}
                yield Step(at_us(), who, verb, values)


def _swarm(random: Random, names: tuple[str, ...], *, none: bool) -> set[str]:
    """Return which of the names exist in this world."""
    chance = random.random()
    if chance < 0.125:
        return set(names)
    if none and chance < 0.35:
        return set()
    return {name for name in names if random.random() < 0.5}
