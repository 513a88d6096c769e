"""A scripted auth server, and a broker that uses it.

An nsqd with an auth server queries it for each secret that a client sends with AUTH, and again when the grant has
expired. A test says what a secret allows; without that the server answers 403, and nsqd refuses the client.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs

import attrs

from nsqkit.errors import OptionError
from nsqkit.http.messages import Request, Response
from nsqkit.options.checks import take_seconds
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.http_faults import HTTPFaults
from nsqkit.testing.http_server import HTTPServer
from nsqkit.testing.servers import NsqdServer

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.options.durations import Seconds
    from nsqkit.testing.clock import Mode

PERMISSIONS: Final = ("subscribe", "publish")

TTL_MAX: Final = 1e9
"""Seconds of a grant; 30 years."""

_PATH: Final = "/auth"


@attrs.frozen
class Grant:
    """A part of what a secret allows.

    Attributes:
        topic: a pattern of topics, as nsqd matches it: anywhere in a name, unless it has ``^`` and ``$``.
        channels: patterns of channels.
        permissions: ``subscribe``, ``publish`` or both.
        ttl: seconds after which nsqd queries again; the shortest of a secret counts.
        identity: the name that nsqd reports for the client.
    """

    topic: str
    channels: tuple[str, ...]
    permissions: tuple[str, ...]
    ttl: float
    identity: str


@attrs.frozen
class AuthRequest:
    """A request of nsqd: the secret of the client, its IP address, and the common name in its certificate."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


class AuthServer:
    """An auth server in the loop thread, for ``with``.

    Args:
        clock: the time, as for ``NsqdServer``.
        seed: of the faults' probabilities.

    Attributes:
        address: ``host:port``.
        clock: the time of ``faults.slow``.
        faults: ``slow``, ``status``, ``malformed``, ``silence``, ``reset`` and ``close_on_accept``, for its requests.
        requests: all requests so far.
    """

    def __init__(self, clock: Mode | ControlledClock = "running", *, seed: int = 0) -> None:
        self.address = ""
        self.clock = clock if isinstance(clock, ControlledClock) else ControlledClock(clock)
        self.faults = HTTPFaults([_PATH], topics=False, seed=seed)
        self.requests: list[AuthRequest] = []
        self._grants: dict[str, tuple[Grant, ...]] = {}
        self._stack = ExitStack()

    def grant(
        self,
        secret: str,
        topic: str = ".*",
        channels: str | Sequence[str] = ".*",
        *,
        permissions: str | Sequence[str] = PERMISSIONS,
        ttl: Seconds = 3600.0,
        identity: str = "",
    ) -> None:
        """Allow the clients with a secret more than before; see ``Grant``.

        Raises:
            OptionError: a value is not allowed.
        """
        allowed = (permissions,) if isinstance(permissions, str) else tuple(permissions)
        if not allowed or not {*allowed} <= {*PERMISSIONS}:
            raise OptionError(f"permissions is {permissions!r}; allowed is 'subscribe', 'publish' or a list of both")
        seconds = take_seconds("ttl", ttl, TTL_MAX, least=1.0)
        if seconds != int(seconds):
            raise OptionError(f"ttl is {ttl!r}; allowed are whole seconds, since auth servers answer with those")
        patterns = (channels,) if isinstance(channels, str) else tuple(channels)
        grant = Grant(topic, patterns, allowed, seconds, identity)
        self._grants[secret] = (*self._grants.get(secret, ()), grant)

    def deny(self, secret: str) -> None:
        """Remove all grants of a secret; nsqd applies it when the present grant of a client has expired."""
        self._grants.pop(secret, None)

    def reset(self) -> None:
        """Remove all grants, faults and requests."""
        self._grants.clear()
        self.faults.clear()
        self.requests.clear()

    # ---- the server ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        server = self._stack.enter_context(HTTPServer(self.answer, self.faults, self.clock))
        self.address = server.address
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    async def answer(self, request: Request) -> Response:
        """Answer a request of nsqd: a query, or with POST a document."""
        if request.path != _PATH:
            return Response.v1_error(404, "NOT_FOUND")
        if request.method == "POST":
            fields = json.loads(await request.read(1 << 20))
        else:
            fields = parse_qs(request.raw_query, errors="surrogateescape")
        values = {name: texts[0] for name, texts in fields.items()}
        secret = values.get("secret", "")
        remote_ip, common_name = values.get("remote_ip", ""), values.get("common_name", "")
        self.requests.append(AuthRequest(secret, remote_ip, values.get("tls") == "true", common_name))
        grants = self._grants.get(secret)
        if grants is None:
            return Response.v1_error(403, "NOT_AUTHORIZED")
        return Response.v1(
            {
                "ttl": int(min(grant.ttl for grant in grants)),
                "identity": grants[-1].identity,
                "identity_url": "",
                "authorizations": [
                    {"topic": grant.topic, "channels": grant.channels, "permissions": grant.permissions}
                    for grant in grants
                ],
            }
        )


class AuthNsqdServer(NsqdServer):
    """An nsqd whose clients need a secret.

    Args:
        auth: its auth server, which is running; both have one clock.
        options: as for ``NsqdServer``.

    Attributes:
        auth: the auth server.
    """

    def __init__(self, auth: AuthServer, **options: Any) -> None:
        super().__init__(**{"auth_http_address": auth.address, "clock": auth.clock, **options})
        self.auth = auth

    def reset(self) -> None:
        """Disconnect all clients, and forget all topics, messages, grants and requests."""
        super().reset()
        self.auth.reset()
