"""Several nsqds and nsqlookupds, of which a test stops some or cuts the network between them.

    clients ──▶ proxy of nsqd 0 ──▶ nsqd 0 ──▶ gate ──▶ nsqlookupd 0 ◀── HTTP clients
                                           └─▶ gate ──▶ nsqlookupd 1 ◀── HTTP clients

Each nsqd reaches each nsqlookupd through a gate. A partition closes gates, and silences the connections of clients.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from nsqkit.errors import OptionError
from nsqkit.loop_thread import portal_provider
from nsqkit.options.checks import WAIT_MAX, take_seconds
from nsqkit.testing.blocking import wait
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.gate import Gate
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.testing.waiting import Traffic
from nsqkit.transport.address import join_address, port_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.from_thread import BlockingPortal

    from nsqkit.options.durations import Seconds
    from nsqkit.testing.clock import Mode
    from nsqkit.testing.http_faults import HTTPFault
    from nsqkit.testing.link.faults import Fault

Node: TypeAlias = NsqdServer | NsqlookupdServer

SIZE_MAX: Final = 100
"""Nsqds, or nsqlookupds, of a cluster."""

REGISTERED_TIMEOUT: Final = 30.0
"""Real seconds: an nsqd that has had no answer for a second connects again up to 15 seconds later, as nsqd does."""


class Cluster:
    """Nsqds that are registered with each of some nsqlookupds, for ``with``.

    A node in an argument is the server, or the number of an nsqd, from 0.

    Args:
        nsqds: the number of nsqds.
        nsqlookupds: the number of nsqlookupds.
        clock: the time of all: the mode of a ``ControlledClock``, or one.
        options: of each nsqd, as for ``NsqdServer``.

    Attributes:
        nsqds: the nsqds.
        nsqlookupds: the nsqlookupds.
        clock: the time of all.

    Raises:
        OptionError: a value is not allowed.
    """

    def __init__(
        self, nsqds: int = 3, nsqlookupds: int = 2, *, clock: Mode | ControlledClock = "running", **options: Any
    ) -> None:
        for name, count, least in (("nsqds", nsqds, 1), ("nsqlookupds", nsqlookupds, 0)):
            if type(count) is not int or not least <= count <= SIZE_MAX:
                raise OptionError(f"{name} is {count!r}; allowed is an int from {least} to {SIZE_MAX}")
        for name in ("lookupd_tcp_address", "tcp_address", "http_address"):
            if name in options:
                raise OptionError(f"there is no option {name} for a cluster, which chooses the addresses itself")
        NsqdServer(**options)  # so that a wrong option is an error of this call
        self.clock = clock if isinstance(clock, ControlledClock) else ControlledClock(clock)
        self.nsqds: list[NsqdServer] = []
        self.nsqlookupds = [NsqlookupdServer(clock=self.clock) for _ in range(nsqlookupds)]
        self._nsqd_count = nsqds
        self._options = options
        self._gates: dict[tuple[Node, Node], Gate] = {}
        self._faults: dict[Node, list[Fault | HTTPFault]] = {}  # of the nodes that are cut off from everything
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(portal_provider())
            for lookupd in self.nsqlookupds:
                stack.enter_context(lookupd)
            for _ in range(self._nsqd_count):
                self._start_nsqd(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.heal()  # a silent connection would hold up the stop
        self._stack.close()

    def _start_nsqd(self, stack: ExitStack) -> None:
        assert self._portal is not None
        gates = []
        for lookupd in self.nsqlookupds:
            gate = self._portal.call(Gate, lookupd.tcp_address, self.clock)
            stack.enter_context(self._portal.wrap_async_context_manager(gate))
            gates.append(gate)
        addresses = [gate.address for gate in gates]
        nsqd = NsqdServer(clock=self.clock, **{**self._options, "lookupd_tcp_address": addresses})
        self.nsqds.append(stack.enter_context(nsqd))
        self._gates.update({(nsqd, lookupd): gate for lookupd, gate in zip(self.nsqlookupds, gates, strict=True)})

    # ---- addresses -------------------------------------------------------------------------------------------------

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """``host:port`` of each nsqd, for clients."""
        return [nsqd.tcp_address for nsqd in self.nsqds]

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """``host:port`` of each nsqlookupd, for consumers."""
        return [lookupd.http_address for lookupd in self.nsqlookupds]

    # ---- life ------------------------------------------------------------------------------------------------------

    def stop(self, node: Node | int) -> None:
        """Stop a node; an nsqd unregisters."""
        self._node(node).stop()

    def kill(self, node: Node | int) -> None:
        """End a node as by a crash: its connections are reset, and its messages are lost."""
        self._node(node).kill()

    def restart(self, node: Node | int, *, keep_data: bool = False) -> None:
        """Start a node again, on the same addresses.

        An nsqd that has lost an nsqlookupd connects again after 15 s of the clock.

        Args:
            node: the node, stopped, killed or running.
            keep_data: an nsqd begins with its messages, unless it was killed.
        """
        self._node(node).restart(keep_data=keep_data)

    # ---- network ---------------------------------------------------------------------------------------------------

    def partition(self, node: Node | int, other: Node | int | None = None) -> None:
        """Cut the network: nothing arrives, and connections remain open.

        An nsqd queries an nsqlookupd over HTTP for the channels of a new topic, and that is not cut.

        Args:
            node: a node.
            other: an nsqd, if ``node`` is an nsqlookupd, or the other way round; None to cut ``node`` off from
                everything, clients too.

        Raises:
            OptionError: both are of one kind, and have no connection.
        """
        first = self._node(node)
        if other is not None:
            second = self._node(other)
            pair = (first, second) if (first, second) in self._gates else (second, first)
            if pair not in self._gates:
                raise OptionError(f"an {first.name} and an {second.name} have no connection; allowed is one of each")
            self._call(self._gates[pair].close)
            return
        if all(fault.is_removed for fault in self._faults.get(first, ())):
            self._faults[first] = [first.faults.silence()]
            if isinstance(first, NsqdServer):
                self._faults[first].append(first.faults.half_open())
        for pair, gate in self._gates.items():
            if first in pair:
                self._call(gate.close)

    def heal(self) -> None:
        """Connect everything again. Clients of an nsqd that was cut off have to reconnect."""
        for faults in self._faults.values():
            for fault in faults:
                fault.remove()
        self._faults.clear()
        for gate in self._gates.values():
            self._call(gate.open)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait_registered(self, timeout: Seconds = REGISTERED_TIMEOUT) -> Awaitable[None]:
        """Return when each nsqlookupd lists each nsqd that it can reach, with its topics and channels.

        In an async test the result has to be awaited.

        Raises:
            AssertionError: one is missing after ``timeout`` real seconds.
        """
        seconds = take_seconds("timeout", timeout, WAIT_MAX)

        def run() -> None:
            if not Traffic().wait_for(lambda: not self._missing(), seconds):
                missing = "\n".join(self._missing())
                raise AssertionError(f"after {seconds:g} s the registrations are not complete:\n{missing}")

        return wait(run)

    def _missing(self) -> list[str]:
        """Return a sentence for each nsqd that an nsqlookupd does not list as it is."""
        sentences = []
        registries = {lookupd: lookupd.registry for lookupd in self.nsqlookupds if lookupd.is_running}
        states = {nsqd: nsqd.state for nsqd in self.nsqds if nsqd.is_running}
        for (nsqd, lookupd), gate in self._gates.items():
            if not gate.is_open or nsqd not in states or lookupd not in registries:
                continue
            listed = [node for node in registries[lookupd].nodes if node.tcp_address == _announced_address(nsqd)]
            topics = states[nsqd].topics
            channels = {(topic, channel) for topic in topics for channel in topics[topic].channels}
            if not any({*node.topics} == {*topics} and {*node.channels} == channels for node in listed):
                number, other = self.nsqds.index(nsqd), self.nsqlookupds.index(lookupd)
                sentences.append(
                    f"nsqlookupd {other} lists {listed or 'nothing'} for nsqd {number}, which has {channels}"
                )
        return sentences

    def _node(self, node: Node | int) -> Node:
        if isinstance(node, int) and not isinstance(node, bool):
            if 0 <= node < len(self.nsqds):
                return self.nsqds[node]
        elif node in self.nsqds or node in self.nsqlookupds:
            return node
        raise OptionError(f"node is {node!r}; allowed is a server of this cluster, or 0 to {len(self.nsqds) - 1}")

    def _call(self, function: Callable[[], None]) -> None:
        assert self._portal is not None
        self._portal.call(function)


def _announced_address(nsqd: NsqdServer) -> str:
    options = nsqd.options
    return join_address(options.broadcast_address, options.broadcast_tcp_port or port_of(nsqd.tcp_address))
