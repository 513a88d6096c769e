"""An nsqlookupd of a world: its registry, the sessions of brokers, its routes, and the faults of its answers.

Registry, sessions and routes are the real ones. Each command and each request also goes to the reference registry, and
the two are compared. The registrations are in memory, so a start begins without any.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nsqkit.http.messages import Request, Response
from nsqkit.lookupd.http_api import HTTPApi
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.registry import Registry
from nsqkit.lookupd.session import Session
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.lookup import OK, AnswerDecoder, LookupCommand, LookupdInfo
from tests.simulation.broken import Broken
from tests.simulation.lookup.raw import send_raw
from tests.simulation.lookup.registry_oracle import RegistryOracle
from tests.simulation.network import MS
from tests.simulation.workload import WorldClock

if TYPE_CHECKING:
    from nsqkit.errors import BrokerError
    from tests.simulation.lookup.announcer import LookupLink
    from tests.simulation.world import World

DELAYS_NS: Final = (0, 0, MS, 50 * MS)
LATE_NS: Final = (500 * MS, 3_000 * MS, 20_000 * MS)
HTTP_PORT: Final = 4161
NOTHING: Final = b'{"channels":[],"producers":[]}'


class Lookupd:
    """One nsqlookupd.

    Args:
        world: its world.
        name: its name in the plan.
        options: of nsqlookupd.

    Attributes:
        registry: None while it is down.
        oracle: the required registrations.
        resume_ns: it processes nothing before.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world, self.name = world, name
        self._options = LookupdOptions(**options)
        self.inactive_ns = self._options.inactive_producer_timeout_ns
        self.info = LookupdInfo(broadcast_address=name, http_port=HTTP_PORT, tcp_port=4160, version="1.3.0")
        self.registry: Registry | None = None
        self.resume_ns = 0
        self.needs_check = False
        self._links: dict[LookupLink, AnswerDecoder] = {}
        self._random = Random(f"{world.plan.seed}/{name}")
        self._refuses_until_ns = self._fault_until_ns = 0
        self._fault = ""
        self._earlier: dict[str, tuple[int, bytes]] = {}
        self._start()

    @property
    def accepts(self) -> bool:
        return self.registry is not None and self._world.now_ns >= self._refuses_until_ns

    # ---- lives -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.registry is None:
            tombstone_ns = self._options.tombstone_lifetime_ns
            self.registry = Registry(inactive_producer_timeout_ns=self.inactive_ns, tombstone_lifetime_ns=tombstone_ns)
            self.oracle = RegistryOracle(inactive_ns=self.inactive_ns, tombstone_ns=tombstone_ns)
            self._api = HTTPApi(self.registry, WorldClock(self._world))

    def _end(self, how: str) -> None:
        if self.registry is not None:
            self._world.note("%s is down", self.name)
            self.registry = None
            links, self._links = list(self._links), {}
            for link in links:
                link.lose_lookupd(how)

    def heal(self) -> None:
        """End all faults, and start."""
        self.resume_ns = self._refuses_until_ns = self._fault_until_ns = 0
        self._start()

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        until_ns = self._world.now_ns + 1000 * values.get("for_us", 0)
        match verb:
            case "kill" | "stop" | "power cut":
                self._end(verb)
            case "start":
                self._start()
            case "suspend":
                self.resume_ns = until_ns
            case "refuse":
                self._refuses_until_ns = until_ns
            case "answers":
                self._fault, self._fault_until_ns = values["how"], until_ns
            case "raw" if self.registry is not None:
                send_raw(self.registry, self.info, values["what"], self._world.now_ns)
            case "raw":
                pass
            case "list":
                self.check(whole=True)
            case _ if self.registry is not None and self.resume_ns <= self._world.now_ns:
                self._administer(verb, values["topic"], values["channel"], values.get("node", ""))
        for link in self._links:
            self._world.touch(link)

    def _administer(self, verb: str, topic: str, channel: str, node: str) -> None:
        """Do as an admin does, over HTTP."""
        now_ns, names = self._world.now_ns, (topic.encode(), channel.encode())
        query = {"topic": topic, "channel": channel} if verb.endswith("channel") else {"topic": topic}
        wanted = 200
        match verb:
            case "make topic":
                self.oracle.topics.add(names[0])
            case "make channel":
                self.oracle.topics.add(names[0])
                self.oracle.channels.add(names)
            case "delete topic":
                self.oracle.delete_topic(names[0])
            case "delete channel":
                wanted = 200 if self.oracle.delete_channel(*names) else 404
            case "tombstone topic":
                query["node"] = self._world.lookups.http_address(node)
                self.oracle.tombstone(names[0], query["node"], now_ns)
        action, _, place = verb.replace("make", "create").partition(" ")
        response = self._answer("POST", f"/{place}/{action}?{urlencode(query)}")
        if response.status != wanted:
            raise Broken(21, f"{self.name} answered {response.status}, not {wanted}, to {verb} {query}")
        self.needs_check = True

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    def _answer(self, method: str, target: str) -> Response:
        try:
            self._api.handle(Request.of(method, target)).send(None)  # type: ignore[union-attr]
        except StopIteration as end:
            response: Response = end.value
            return response
        raise AssertionError("no route waits")

    def get(self, path: str, **query: str) -> Any:
        """Return the document of a good answer; None for 404."""
        response = self._answer("GET", f"{path}?{urlencode(query)}")
        return json.loads(response.body or b"".join(response.pieces)) if response.status == 200 else None

    @property
    def fault(self) -> str:
        """The fault of its answers at present."""
        return self._fault if self._world.now_ns < self._fault_until_ns else ""

    @property
    def delay_ns(self) -> int:
        """The time that a request or an answer takes now."""
        return self._random.choice(LATE_NS if self.fault == "late" else DELAYS_NS)

    def channels(self, topic: bytes) -> list[str]:
        """Return the channels of a topic as a broker gets them, by the fault of the moment."""
        if self.registry is None or not self.accepts or self.fault in ("empty", "error", "garbage"):
            return []
        found: list[str] = self.get("/channels", topic=topic.decode())["channels"]
        if set(found) != {channel.decode() for name, channel in self.oracle.channels if name == topic}:
            raise Broken(21, f"{self.name} answers {found} about {topic!r}, not {self.oracle.channels}")
        return found

    def respond(self, target: str) -> tuple[int, bytes]:
        """Answer a request of a consumer, by the fault of the moment."""
        match self.fault:
            case "old" if target in self._earlier:
                return self._earlier[target]
            case "empty":
                return 200, NOTHING
            case "error":
                return 500, b"{}"
            case "garbage":
                return 200, b"<html>"
        response = self._answer("GET", target)
        topic = target.rpartition("topic=")[2].replace("%23", "#").encode()
        self._check_lookup(topic, json.loads(response.body) if response.status == 200 else None)
        self._earlier[target] = response.status, response.body
        return self._earlier[target]

    # ---- connections -------------------------------------------------------------------------------------------------

    def open_session(self, link: LookupLink) -> Session:
        """Accept a connection."""
        assert self.registry is not None
        self._links[link] = AnswerDecoder(answer_size_max=1 << 20)
        return Session(self.registry, link.name, self.info)

    def receive(
        self,
        link: LookupLink,
        session: Session,
        data: bytes,
        commands: list[LookupCommand],
        cut_off: BrokerError | None,
    ) -> bytes:
        """Process bytes of an nsqd; return the answers.

        Args:
            link: the connection.
            session: its session.
            data: the bytes, none for the end.
            commands: the commands that they complete.
            cut_off: the answer to a body that the end has cut off.
        """
        now_ns = self._world.now_ns
        for command in commands:
            self._world.note("%s ▶ %s: %s", link.name, self.name, command)
            self.oracle.command(link, command, now_ns)
        if data:
            session.receive_data(data, now_ns)
        else:
            session.receive_eof(now_ns)
        output = b""
        while (data := session.data_to_send()) or session.has_input:
            output += data
            session.process_input(now_ns)
        answers = [b"{}" if answer.startswith(b"{") else answer for answer in self._links[link].feed(output)]
        expected = [b"{}" if command.verb == b"IDENTIFY" else OK for command in commands]
        expected += [] if cut_off is None else [encode_error_text(cut_off)]
        if answers != expected:
            raise Broken(11, f"{self.name} answered {commands} with {answers}, not {expected}")
        if session.ended:
            self.oracle.closed(link)
            del self._links[link]
        self.needs_check = True
        return output

    # ---- checks ------------------------------------------------------------------------------------------------------

    def _check_lookup(self, topic: bytes, answer: Any) -> None:
        expected = None
        if topic in self.oracle.topics:
            channels = sorted(channel.decode() for name, channel in self.oracle.channels if name == topic)
            expected = channels, self.oracle.lookup(topic, self._world.now_ns)
        found = None
        if answer is not None:
            found = sorted(answer["channels"]), sorted(map(address_of, answer["producers"]))
        if found != expected:
            raise Broken(21, f"{self.name} answers {found} about {topic!r}, not {expected}")

    def check(self, *, whole: bool = False) -> None:
        """Compare the registry with the required one; all of it by the answers of its routes."""
        self.needs_check = False
        if self.registry is None:
            return
        oracle, now_ns = self.oracle, self._world.now_ns
        names = set(self.registry.topics())
        if names != oracle.topics:
            raise Broken(21, f"{self.name} has the topics {names}, not {oracle.topics}")
        channels = {(topic, channel) for topic in names for channel in self.registry.channels(topic)}
        if channels != {pair for pair in oracle.channels if pair[0] in names}:
            raise Broken(21, f"{self.name} has the channels {channels}, not {oracle.channels}")
        for name in names:
            found = sorted(
                f"{each.node.broadcast_address}:{each.node.tcp_port}" for each in self.registry.producers(name, now_ns)
            )
            if found != oracle.lookup(name, now_ns):
                raise Broken(21, f"{self.name} lists {found} for {name!r}, not {oracle.lookup(name, now_ns)}")
        if whole:
            for name in names:
                self._check_lookup(name, self.get("/lookup", topic=name.decode()))
            nodes = Counter(
                (address_of(node), topic, dead)
                for node in self.get("/nodes")["producers"]
                for topic, dead in zip(node["topics"], node["tombstones"], strict=True)
            )
            expected = Counter(
                (peer.address, topic.decode(), oracle.is_tombstoned(peer, topic, now_ns))
                for peer in oracle.active_peers(now_ns)
                for topic in peer.topics
            )
            if nodes != expected:
                raise Broken(21, f"{self.name} lists {nodes}, not {expected}")
            self._check_other_routes(oracle)

    def _check_other_routes(self, oracle: RegistryOracle) -> None:
        if {topic.encode() for topic in self.get("/topics")["topics"]} != oracle.topics:
            raise Broken(21, f"{self.name} has the topics {self.get('/topics')}, not {oracle.topics}")
        registered = Counter(
            (address_of(peer), key.split(":")[1])
            for key, peers in self.get("/debug").items()
            for peer in peers
            if key.startswith("topic:")
        )
        wanted = Counter((peer.address, topic.decode()) for peer in oracle.peers.values() for topic in peer.topics)
        if registered != wanted:
            raise Broken(21, f"{self.name} has registered {registered}, not {wanted}")
        for target, status in (("/ping", 200), ("/info", 200), ("/lookup", 400), ("/channels", 400)):
            if (found := self._answer("GET", target).status) != status:
                raise Broken(21, f"{self.name} answered {found} to {target}, not {status}")


def address_of(entry: dict[str, Any]) -> str:
    return f"{entry['broadcast_address']}:{entry['tcp_port']}"
