"""The nsqlookupds of a world, with all that announces to them, and their state once all faults have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsqkit.broker.core.lookup_peer import ANSWER_TIMEOUT_NS, PING_INTERVAL_NS
from nsqkit.broker.lookup_announcer import DIAL_INTERVAL_NS, DIAL_TIMEOUT
from tests.simulation.broken import Broken
from tests.simulation.lookup.announcer import Announcer
from tests.simulation.lookup.discovery import LookupConsumer
from tests.simulation.lookup.lookupd import DELAYS_NS, Lookupd

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.plan import Plan
    from tests.simulation.world import World

SLACK_NS: Final = 5_000_000_000
"""For the delays of the network, the commands of an announcement, and the rounds of the world."""


class Lookups:
    """All nsqlookupds of a world.

    Attributes:
        lookupds: by name.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self.lookupds = {name: Lookupd(world, name, dict(options)) for name, options in plan.lookupds.items()}
        self._announcers: dict[str, Announcer] = {}
        if self.lookupds:
            for node in world.nodes.values():
                node.announcer = self._announcers[node.name] = Announcer(world, node)
        self._list_limit_ns: int | None = None
        self._limit_ns: int | None = None
        self._is_listed = False

    def act(self, name: str, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of an nsqlookupd, or the move of a broker."""
        if verb != "move":
            self.lookupds[name].act(verb, values)
        elif name in self._announcers:
            self._announcers[name].move(values["host"], values["tcp_port"])

    def node_at(self, address: str) -> Node | None:
        """Return the broker that is at an address."""
        for name, announcer in self._announcers.items():
            if f"{announcer.host}:{announcer.tcp_port}" == address:
                return self._world.nodes[name]
        return None

    def http_address(self, node: str) -> str:
        """Return the name of a broker in a tombstone."""
        announcer = self._announcers.get(node)
        return "none:1" if announcer is None else f"{announcer.host}:{announcer.tcp_port + 1}"

    def check(self) -> None:
        """Check the nsqlookupds to which anything has happened."""
        for lookupd in self.lookupds.values():
            if lookupd.needs_check:
                lookupd.check()
        for announcer in self._announcers.values():
            for name, link in announcer.links.items():
                link.check_answer(self._world.now_ns)
                if link.needs_check and link.is_quiet:
                    link.needs_check = False
                    if wrong := announcer.wrong_registrations(self.lookupds[name]):
                        raise Broken(21, wrong)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults."""
        if not self.lookupds:
            return
        for lookupd in self.lookupds.values():
            lookupd.heal()
        self._limit_ns = self._list_limit_ns = self._world.now_ns + self._announce_limit_ns()

    def _announce_limit_ns(self) -> int:
        """The time until all brokers are listed.

        A session notices a lost answer after a PING, and dials again after the interval; an nsqd that has vanished is
        listed until it counts as inactive.
        """
        limit_ns = PING_INTERVAL_NS + ANSWER_TIMEOUT_NS + DIAL_INTERVAL_NS + round(DIAL_TIMEOUT * 1e9) + SLACK_NS
        return limit_ns + self._vanished_ns()

    def are_settled(self, consumers: list[LookupConsumer]) -> bool:
        """Whether all nsqlookupds list the live brokers, and all consumers are connected to those.

        Raises:
            Broken: it takes too long.
        """
        if not self.lookupds:
            return True
        now_ns, missing = self._world.now_ns, self._wrong_list()
        if not missing:
            missing = next((consumer.missing for consumer in consumers if consumer.missing), "")
            if not missing:
                self._limit_ns = self._list_limit_ns = None  # what changes from now on has a limit of its own
                return True
            if not self._is_listed:
                self._is_listed = True
                self._limit_ns = now_ns + self._consumer_limit_ns()
        elif self._is_listed:  # by a connection that was lost, and whose end was not noticed before
            self._is_listed, self._limit_ns = False, self._list_limit_ns
        if self._limit_ns is None:
            self._limit_ns = now_ns + (self._consumer_limit_ns() if self._is_listed else self._announce_limit_ns())
        if now_ns > self._limit_ns:
            raise Broken(28, missing)
        return False

    def _consumer_limit_ns(self) -> int:
        """The time for two requests, of which the first was under way already, and for a connection."""
        options = self._world.consumer_options
        polls = 2 * options.lookupd_poll_interval * (1 + options.lookupd_poll_jitter)
        seconds = options.lookupd_poll_timeout + polls + options.reconnect_delay_max + options.dial_timeout
        # The tombstone of a broker that has vanished may end meanwhile.
        return round(seconds * 1e9) + 4 * max(DELAYS_NS) + SLACK_NS + self._vanished_ns()

    def _vanished_ns(self) -> int:
        """How long a broker that has vanished silently stays listed; 0 if there is none."""
        present = {link for announcer in self._announcers.values() for link in announcer.links.values()}
        if any(lookupd.oracle.peers.keys() - present for lookupd in self.lookupds.values()):
            return max(lookupd.inactive_ns for lookupd in self.lookupds.values())
        return 0

    def _wrong_list(self) -> str:
        """Return in which way an nsqlookupd does not list what the brokers have; empty if all do."""
        now_ns = self._world.now_ns
        for lookupd in self.lookupds.values():
            listed: set[tuple[str, bytes]] = set()
            wanted: set[tuple[str, bytes]] = set()
            oracle = lookupd.oracle
            for peer in oracle.active_peers(now_ns):
                topics = [topic for topic in peer.topics if not oracle.is_tombstoned(peer, topic, now_ns)]
                listed |= {(peer.address, topic) for topic in topics}
            for announcer in self._announcers.values():
                if wrong := announcer.wrong_registrations(lookupd):
                    return wrong
                own = oracle.peers[announcer.links[lookupd.name]]
                wanted |= {(own.address, topic) for topic in own.topics}
            if listed != wanted:
                return f"{lookupd.name} lists {sorted(listed)}, not {sorted(wanted)}"
        return ""

    def conclude(self) -> None:
        """Check everything at rest."""
        for lookupd in self.lookupds.values():
            lookupd.check(whole=True)
