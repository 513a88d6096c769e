"""A proxy for HTTP before a real nsqlookupd, with the faults of ``nsqkit.testing.lookup_faults``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from nsqkit.errors import ConnectionLost, RequestFailed
from nsqkit.http.messages import Request, Response
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.http_server import HTTPServer
from nsqkit.testing.lookup_faults import LookupFaults
from nsqkit.transport.address import split_address

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.testing.clock import Mode

BODY_MAX: Final = 64 << 20
"""Bytes of a body that are passed on."""

_OWN_HEADERS: Final = frozenset(("connection", "content-length", "date", "host", "transfer-encoding"))


class LookupProxy:
    """Passes the requests of consumers on to an nsqlookupd, for ``with``.

    Args:
        upstream: ``host:port`` of the HTTP routes of the nsqlookupd.
        clock: the time, as for ``NsqdServer``.
        seed: of the probabilities of the faults.

    Attributes:
        http_address: ``host:port`` for consumers.
        clock: the time of ``faults.slow``.
        faults: rules for the answers.

    Raises:
        OptionError: a value is not allowed.
    """

    def __init__(self, upstream: str, *, clock: Mode | ControlledClock = "running", seed: int = 0) -> None:
        split_address(upstream)
        self.http_address = ""
        self.clock = clock if isinstance(clock, ControlledClock) else ControlledClock(clock)
        self.faults = LookupFaults(seed)
        self._upstream = upstream
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        server = self._stack.enter_context(HTTPServer(self._pass_on, self.faults, self.clock))
        self.http_address = server.address
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    async def _pass_on(self, request: Request) -> Response:
        from nsqkit.http.client import fetch

        try:
            response = await fetch(
                request.method,
                f"http://{self._upstream}{request.target}",
                headers=_passed_on(request.headers),
                body=await request.read(BODY_MAX),
                clock=self.clock,
                connect_timeout=None,
                request_timeout=None,
                body_max=BODY_MAX,
            )
        except RequestFailed as error:
            raise ConnectionLost(f"the nsqlookupd has not answered: {error}") from error
        return Response(response.status, _passed_on(response.headers), response.body)


def _passed_on(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if name.lower() not in _OWN_HEADERS)
