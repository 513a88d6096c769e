"""A broker and an nsqlookupd for tests: asyncio, trio, or plain functions.

A server runs in the process of the test, in its own thread, on a free port. It answers when ``with`` has entered
it; after the ``with`` its port is closed and its tasks have ended. For a server in the test's own event loop use
``nsqkit.broker.server.Nsqd`` and ``nsqkit.lookupd.server.Nsqlookupd``.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.loop_thread import portal_provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.from_thread import BlockingPortal

    from nsqkit.broker.core.broker import Broker
    from nsqkit.lookupd.registry import Registry

S = TypeVar("S", bound=Nsqd | Nsqlookupd)
T = TypeVar("T")

HOST = "127.0.0.1"

_ADDRESSES = {"tcp_address": f"{HOST}:0", "http_address": f"{HOST}:0", "broadcast_address": HOST}


class _Server(Generic[S]):
    """The common part of both: a thread and two addresses."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._service: S | None = None
        self.tcp_address = ""
        self.http_address = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = self._portal = stack.enter_context(portal_provider())
            service = self._service = portal.call(self._make)
            stack.enter_context(portal.wrap_async_context_manager(service))
            self.tcp_address = service.tcp_address
            self.http_address = service.http_address
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

    def _call(self, look: Callable[[S], T]) -> T:
        assert self._portal is not None
        assert self._service is not None
        return self._portal.call(look, self._service)


class NsqdServer(_Server[Nsqd]):
    """A broker in a thread, for ``with``.

    Args:
        options: ``BrokerOptions`` by name; the addresses default to free ports of 127.0.0.1. Without ``data_path``
            messages are in memory only.

    Attributes:
        tcp_address: ``host:port`` that clients connect to.
        http_address: ``host:port`` of the HTTP routes.

    Raises:
        OptionError: an option that cannot be used.
    """

    def __init__(self, **options: Any) -> None:
        made = BrokerOptions(**{**_ADDRESSES, **options})
        super().__init__(partial(Nsqd, made, data_path=made.data_path or None))

    def inspect(self, look: Callable[[Broker], T]) -> T:
        """Call ``look`` with the engine, in the broker's thread between two commands, and return its result."""
        return self._call(lambda nsqd: look(nsqd.broker))


class NsqlookupdServer(_Server[Nsqlookupd]):
    """An nsqlookupd in a thread, for ``with``.

    Args:
        options: ``LookupdOptions`` by name; the addresses default to free ports of 127.0.0.1.

    Attributes:
        tcp_address: ``host:port`` that nsqds connect to.
        http_address: ``host:port`` of the HTTP routes, for consumers.

    Raises:
        OptionError: an option that cannot be used.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(partial(Nsqlookupd, LookupdOptions(**{**_ADDRESSES, **options})))

    def inspect(self, look: Callable[[Registry], T]) -> T:
        """Call ``look`` with the registrations, in the thread of the nsqlookupd, and return its result."""
        return self._call(lambda lookupd: look(lookupd.registry))
