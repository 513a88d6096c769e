"""A broker of a world that has auth servers, and these servers.

The broker sends its requests by the real ``query_auth_servers``, run by hand: only the connection to a server is
replaced. A server answers after a delay, with a grant, with a refusal, or with an error, as the steps of the plan say.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.broker.core.report.stats import collect
from nsqkit.broker.core.session.sessions import AuthorizationRequested, SessionEnded
from nsqkit.errors import RequestFailed
from nsqkit.wire.commands import Command
from tests.simulation.auth.gate import End, Gate, Grant
from tests.simulation.auth.leaks import check_texts, secret_of
from tests.simulation.broken import conclude
from tests.simulation.by_hand import load_by_hand, pause
from tests.simulation.network import END, MS
from tests.simulation.node import Node

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from tests.simulation.connection import Connection
    from tests.simulation.foreign import Refusal
    from tests.simulation.world import World

ALL: Final = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
GARBAGE: Final = (
    b"",
    b"{]",
    b'{"ttl": 0, "authorizations": []}',
    b'{"ttl": 5, "authorizations": [{"topic": "(", "channels": [".*"], "permissions": ["publish"]}]}',
    b'{"ttl": 5, "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["admin"]}]}',
)
LATE_NS: Final = 5_000 * MS  # a request has failed after this time


async def _fetch(address: str, options: object, fields: dict[str, str], clock: Query) -> bytes:
    return await clock.fetch(address, fields["secret"])


AUTH: Final = load_by_hand("nsqkit.broker.auth", _fetch=_fetch)


@attrs.define(eq=False)
class Query:
    """A request of the broker for the grant of a session, to one server after the other.

    Attributes:
        session: it waits for the answer.
        random: decides how long each server takes, and whether it fails.
        due_ns: when it goes on.
        run: the coroutine that sends it.
        grant: the usable answer; None if there was none.
    """

    node: AuthNode
    session: Session
    random: Random
    due_ns: int = 0
    run: Generator[int | None, None, Any] | None = None
    grant: Grant | None = None

    def now_ns(self) -> int:
        """The time, as the broker's clock."""
        return self.node.now_ns

    async def fetch(self, address: str, secret: str) -> bytes:
        """Answer as the server with this address does."""
        conclude(22, self.grant is None, f"{self.node.name} queries {address} after a usable answer")
        await pause(self.node.answer_ns(self.random))
        how, grant = self.node.answer_of(address, secret, self.random)
        if how == "error":
            raise RequestFailed("got response 500")
        if how == "garbage":
            return self.random.choice(GARBAGE)
        if grant is None:
            raise RequestFailed("got response 403")
        self.grant = grant
        return grant.document


class AuthNode(Node):
    """A broker with auth servers.

    Args:
        world: its world.
        name: its name in the plan.
        options: those of ``Node``, and ``auth``: the number of servers, their delays and mistakes, and the grants by
            the names of secrets.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._auth: dict[str, Any] = options.pop("auth")
        self._grants: dict[str, dict[str, Any]] = dict(self._auth["grants"])
        self._failing: dict[str, Any] = {"until_ns": 0}
        self._is_healed = False
        self._gates: dict[Session, Gate] = {}
        self._queries: list[Query] = []
        password = secret_of("password")
        addresses = [
            f"http://user:{password}@auth-{number}/auth?key={password}" for number in range(self._auth["servers"])
        ]
        super().__init__(world, name, options | {"auth_http_addresses": addresses})

    @property
    def refuses_commands(self) -> bool:
        return True

    # ---- the auth servers --------------------------------------------------------------------------------------------

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        match verb:
            case "fail auth":
                self._failing = values | {"until_ns": self._world.now_ns + 1000 * values["for_us"]}
            case "grant" | "revoke":
                self._grants[values["secret"]] = values["grant"] if verb == "grant" else {"entries": values["entries"]}
            case _:
                super().act(verb, values)

    def answer_ns(self, random: Random) -> int:
        """Return when a server answers a request of now."""
        now_ns = self._world.now_ns
        if self._is_healed:
            return now_ns
        if self._failing["until_ns"] > now_ns and self._failing["how"] == "late":
            return now_ns + LATE_NS
        delay_us: int = random.choice(self._auth["delays_us"])
        return now_ns + 1000 * delay_us

    def answer_of(self, address: str, secret: str, random: Random) -> tuple[str, Grant | None]:
        """Return how a server answers now: ``error``, ``garbage``, or with a grant; None refuses the secret."""
        is_wrong = random.random() < self._auth["mistakes"]
        if self._is_healed:
            return "", Grant("healed", 5, (ALL,))
        fails = self._failing["until_ns"] > self._world.now_ns
        if fails and (self._failing["server"] == "all" or f"auth-{self._failing['server']}/" in address):
            return ("garbage" if self._failing["how"] == "garbage" else "error"), None
        if is_wrong:
            return random.choice(("error", "garbage")), None
        for name, grant in self._grants.items():
            if secret == secret_of(name) and grant.get("entries") is not None:
                return "", Grant(name, grant.get("ttl", 1), tuple(grant["entries"]))
        return "", None

    def _begin_query(self, session: Session, secret: bytes) -> None:
        name, gate = self.links[session].name, self._gates[session]
        is_second = any(query.session is session for query in self._queries)
        conclude(22, not is_second, f"{name} waits, and the auth servers are queried once more")
        conclude(22, secret == gate.secret, f"{name} has sent another secret")
        gate.query_count += 1
        query = Query(self, session, Random(f"{self._world.plan.seed}/{name}/auth/{gate.query_count}"))
        assert self.broker is not None
        query.run = AUTH.query_auth_servers(
            self.options,
            secret=secret,
            remote_ip="",
            tls=False,
            common_name="",
            clock=query,
            random=self.broker.random,
        ).__await__()
        self._queries.append(query)
        self._go_on(query)

    def _go_on(self, query: Query) -> None:
        """Run a query up to its next pause; give its answer to the session, as ``ExternalServices`` does."""
        assert query.run is not None
        try:
            while not (due_ns := next(query.run)):
                pass
            query.due_ns = due_ns
            return
        except StopIteration as stop:
            answer = stop.value
        except RequestFailed as error:
            answer = error
            check_texts(error)
        self._queries.remove(query)
        conclude(22, isinstance(answer, RequestFailed) == (query.grant is None), f"{query.grant} became {answer!r}")
        self._world.note("%s: the auth servers answer with %s", self.name, query.grant)
        gate = self._gates.get(query.session)
        if gate is not None:
            gate.answer(query.grant, self.now_ns)
            self._advance(query.session, gate)
        query.session.authorize(answer)
        self.settle_now()

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def open_session(self, link: Connection) -> Session:
        session = super().open_session(link)
        self._gates[session] = Gate()
        return session

    def receive(self, session: Session, data: bytes, commands: list[Command], refused: Refusal | None = None) -> None:
        gate = self._gates[session]
        gate.add(*commands, *([] if refused is None else [refused]))
        self._advance(session, gate)
        super().receive(session, data, [])
        self._check_gates()

    def end_input(self, session: Session, error: Any) -> None:
        self._guilty.add(session)
        gate = self._gates[session]
        gate.add(End(error))
        self._advance(session, gate)
        if gate.is_waiting and self.oracle is not None:
            self.oracle.clients[session].rdy_count = 0  # nothing is delivered until its last command is processed
        self._survive(self._receive, session, END)
        self._check_gates()

    def _advance(self, session: Session, gate: Gate) -> None:
        """Give the oracle what the broker has to execute now."""
        for item in gate.take(self.now_ns):
            if isinstance(item, Command):
                self.execute(session, [item])
                if item.verb == b"AUTH" and self.oracle is not None:
                    assert gate.grant is not None
                    self.oracle.clients[session].owed[-1] = gate.grant.answer
            elif not isinstance(item, End):
                self.execute(session, [], item)
            elif self.oracle is not None:
                self.oracle.end(session, item.error)
        if self._world.watch is not None:
            self._world.watch.grant(gate)

    def _send(self, session: Session) -> None:
        super()._send(session)
        if session.has_events and not session.ended:
            for event in session.events():
                check_texts(event)
                if isinstance(event, AuthorizationRequested):
                    self._begin_query(session, event.secret)

    def _close(self, session: Session, now_ns: int) -> None:
        gate, link = self._gates.pop(session), self.links[session]
        for event in session._events:
            check_texts(event)
            if gate.is_waiting and isinstance(event, SessionEnded):
                is_silent = (event.reason or "").startswith("no command")
                conclude(22, not is_silent, f"{link.name} was ended while it waited: {event.reason}")
        check_texts(
            session, session.authorization, session.identity, link.machine, getattr(link.machine, "error", None)
        )
        super()._close(session, now_ns)

    def _end_session(self, session: Session, now_ns: int) -> None:
        """Close it at once: the rules for grants are about sessions that have not ended."""
        self._close(session, now_ns)

    def _begin_life(self) -> None:
        super()._begin_life()
        assert self.broker is not None
        self.broker.log_commands(True)

    def _end_life(self, *, killed: bool, is_clean: bool = False) -> None:
        self._gates.clear()
        self._queries.clear()
        super()._end_life(killed=killed, is_clean=is_clean)

    def heal(self) -> None:
        self._is_healed = True
        for query in self._queries:
            query.due_ns = self._world.now_ns
        super().heal()
        self._world.touch(self)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        due_ns = super().next_deadline()
        if self._queries:
            query_ns = max(self.resume_ns, min(query.due_ns for query in self._queries))
            due_ns = query_ns if due_ns is None else min(due_ns, query_ns)
        return due_ns

    def handle_deadline(self, now_ns: int) -> None:
        super().handle_deadline(now_ns)
        if now_ns >= self.resume_ns:
            for query in [query for query in self._queries if query.due_ns <= now_ns]:
                if query in self._queries:
                    self._survive(self._go_on, query)
            self._check_gates()

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, *, whole: bool = False) -> None:
        super().check(whole=whole)
        if whole and self.broker is not None:
            stats = collect(self.broker, self.now_ns)
            check_texts(stats, self.options, self._world.consumer_options)
            channels = [channel for topic in stats["topics"] for channel in topic["channels"]]
            clients = [client for channel in channels for client in channel["clients"]] + (stats["producers"] or [])
            grants = {session.remote_address: gate.grant for session, gate in self._gates.items()}
            for client in clients:
                grant, found = grants[client["remote_address"]], (client["authed"], client["auth_identity"])
                wanted = (False, "") if grant is None else (bool(grant.entries), grant.identity)
                conclude(22, found == wanted, f"/stats of {client['remote_address']} has {found}, not {wanted}")

    def _check_gates(self) -> None:
        """Check that a command waits, or is refused, where it has to be."""
        asked = {query.session for query in self._queries}
        for session, gate in self._gates.items():
            name = self.links[session].name
            is_held = session.outbox_full  # it goes on, or ends, when the answers before this command are committed
            conclude(22, is_held or not gate.is_refused, f"{name} goes on without a grant")
            if session in asked:
                conclude(22, gate.is_waiting, f"{name} waits for a grant")
            else:
                conclude(22, is_held or not gate.is_waiting, f"{name} does not wait for a grant")
