"""A broker for tests of any colour: asyncio, trio, or plain functions.

The rule it guards: when it has been entered, it answers; when it has been left, its port is closed and its tasks
have ended. It runs in the process of the test, in a thread of its own, on a free port, with the real protocol.

A test that wants the broker in its own event loop, or without sockets, uses ``nsqkit.broker.server.Nsqd``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.portal import portal_provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.from_thread import BlockingPortal

    from nsqkit.broker.core.broker import Broker

T = TypeVar("T")

HOST = "127.0.0.1"


class NsqdServer:
    """A broker in a thread, for ``with``.

    Args:
        options: ``BrokerOptions`` by name; the addresses default to free ports of 127.0.0.1. Messages are kept on disk
            only with a ``data_path``.

    Attributes:
        tcp_address: ``host:port`` that clients connect to.
        http_address: ``host:port`` of the HTTP routes.

    Raises:
        OptionError: an option that cannot be used.
    """

    def __init__(self, **options: Any) -> None:
        self._options = BrokerOptions(
            **{"tcp_address": f"{HOST}:0", "http_address": f"{HOST}:0", "broadcast_address": HOST, **options}
        )
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._nsqd: Nsqd | None = None
        self.tcp_address = ""
        self.http_address = ""

    def __enter__(self) -> NsqdServer:
        with ExitStack() as stack:
            portal = self._portal = stack.enter_context(portal_provider())
            nsqd = self._nsqd = portal.call(
                lambda: Nsqd(self._options, data_path=self._options.data_path or None)
            )
            stack.enter_context(portal.wrap_async_context_manager(nsqd))
            self.tcp_address = nsqd.tcp_address
            self.http_address = nsqd.http_address
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def http_url(self) -> str:
        """``http://host:port`` of the HTTP routes."""
        return f"http://{self.http_address}"

    def inspect(self, look: Callable[[Broker], T]) -> T:
        """Return what ``look`` returns of the engine, called in the broker's thread between two commands."""
        assert self._portal is not None
        assert self._nsqd is not None
        return self._portal.call(look, self._nsqd.broker)
