"""What an auth server grants, and which command waits or is refused: nsqd's rules once more, without the broker's code.

A session executes its commands in order. One that needs an answer of the auth servers waits, and all that follow wait
behind it; so a world gives them to the oracle at the time at which the broker has to execute them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import attrs

from nsqkit.errors import BrokerError
from nsqkit.wire.commands import MPUB_HEAD, Command
from tests.simulation.foreign import Refusal, Refused

NEEDY: Final = frozenset((b"AUTH", b"SUB", b"PUB", b"MPUB", b"DPUB", MPUB_HEAD))


@attrs.frozen
class Grant:
    """The answer of an auth server.

    Attributes:
        identity: the name of the client.
        ttl: seconds.
        entries: of the answer's authorizations.
    """

    identity: str
    ttl: int
    entries: tuple[dict[str, Any], ...]

    @property
    def document(self) -> bytes:
        """The answer to the broker."""
        fields = {"ttl": self.ttl, "identity": self.identity, "authorizations": self.entries}
        return json.dumps(fields).encode()

    @property
    def answer(self) -> bytes:
        """The broker's answer to AUTH."""
        return b'{"identity":"%b","identity_url":"","permission_count":%d}' % (
            self.identity.encode(),
            len(self.entries),
        )

    def allows(self, topic: bytes, channel: bytes) -> bool:
        """Return whether one entry allows to subscribe, or to publish where ``channel`` is empty."""
        return any(
            ("subscribe" if channel else "publish") in entry["permissions"]
            and re.search(entry["topic"], topic.decode())
            and any(re.search(pattern, channel.decode()) for pattern in entry["channels"])
            for entry in self.entries
        )


@attrs.frozen
class End:
    """The end of a client's input; ``error`` answers a body that it cuts off."""

    error: BrokerError | None


Item: TypeAlias = Command | Refusal | End


class Gate:
    """The grant of one session, and its commands that were not executed yet.

    Attributes:
        grant: the last one; None before AUTH, and after a failure.
        is_waiting: a command waits for the auth servers.
        is_refused: a command was refused for the lack of a grant.
        query_count: requests of the broker so far; set by the node.
        secret: of the last AUTH.
        verb: of the command that has needed a grant last.
    """

    def __init__(self) -> None:
        self.grant: Grant | None = None
        self.is_waiting = False
        self.is_refused = False
        self.query_count = 0
        self.secret = self.verb = b""
        self._expires_ns = 0
        self._is_answered = False
        self._items: deque[Item] = deque()

    @property
    def has_grant(self) -> bool:
        """Whether something was granted, expired or not."""
        return self.grant is not None and bool(self.grant.entries)

    def add(self, *items: Item) -> None:
        """Add what the session was sent."""
        self._items += items

    def answer(self, grant: Grant | None, now_ns: int) -> None:
        """Use the answer of the auth servers; None if none of them gave a usable one."""
        self.grant = grant
        if grant is not None:
            self._expires_ns = now_ns + grant.ttl * 1_000_000_000
        self.is_waiting, self._is_answered = False, True

    def take(self, now_ns: int) -> Iterator[Item]:
        """Yield everything that the session has to execute now."""
        while self._items and not self.is_waiting and not self.is_refused:
            item = self._items[0]
            if isinstance(item, Command):
                try:
                    self._check(item, now_ns)
                except Refused as refused:
                    self.is_refused = True
                    yield refused
                    return
            if not self.is_waiting:
                yield self._items.popleft()

    def _check(self, command: Command, now_ns: int) -> None:
        """Refuse a command, or let it wait."""
        if command.verb in NEEDY:
            self.verb = command.verb
        if command.verb == b"AUTH":
            if not self._is_answered and self.has_grant:
                raise Refused("E_INVALID")
            self.secret = command.bodies[0]
            self._use_grant(is_needed=not self._is_answered)
            if self.grant is not None and not self.grant.entries:
                raise Refused("E_UNAUTHORIZED")
        elif command.verb in NEEDY:
            if not self._is_answered and not self.has_grant:
                raise Refused("E_AUTH_FIRST")
            self._use_grant(is_needed=not self._is_answered and now_ns > self._expires_ns)
            channel = command.params[1] if command.verb == b"SUB" else b""
            if self.grant is not None and not self.grant.allows(command.params[0], channel) and not self.is_waiting:
                raise Refused("E_UNAUTHORIZED")

    def _use_grant(self, *, is_needed: bool) -> None:
        """Wait for a grant, or use the one that is there."""
        self.is_waiting, self._is_answered = is_needed, False
        if not is_needed and self.grant is None:
            raise Refused("E_AUTH_FAILED")
