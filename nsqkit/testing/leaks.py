"""Leaks: the things that a test has left open and should have closed.

Messages that wait, deferred messages, and messages in flight to a client that has disconnected are no leaks: a correct
test may end with them. Each leak is a sentence.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nsqkit.loop_thread import portal_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqkit.testing.link.items import Connection
    from nsqkit.testing.servers import NsqdServer

GRACE: Final = 1.0
"""Real seconds in which a broker has to see that its clients have disconnected; it takes a millisecond."""


class LeakCheck:
    """Finds the connections to some brokers, and the blocking clients, that a test has not closed.

    Make it before the test.
    """

    def __init__(self) -> None:
        self._known: dict[NsqdServer, frozenset[str]] = {}
        self._blocking_count = _blocking_count()

    def add(self, server: NsqdServer) -> None:
        """Check the clients that connect to a server from now on."""
        self._known[server] = frozenset(client.address for client in server.open_clients)

    def leaks(self) -> list[str]:
        """Return a sentence for each leak, after a wait for connections that are being closed."""
        sentences: list[str] = []
        for server in self._known:
            # A test may have stopped it; then it has no connections.
            if server.is_running and not server.traffic.wait_for(partial(self._is_left, server), GRACE):
                sentences += self._sentences(server)
        if (count := _blocking_count() - self._blocking_count) > 0:
            clients = "a blocking client of nsqkit has" if count == 1 else f"{count} blocking clients of nsqkit have"
            sentences.append(f"{clients} tasks in the thread of the event loop: close each of them")
        return sentences

    def _open(self, server: NsqdServer) -> list[Connection]:
        return [client for client in server.open_clients if client.address not in self._known[server]]

    def _is_left(self, server: NsqdServer) -> bool:
        return not self._open(server)

    def _sentences(self, server: NsqdServer) -> Iterator[str]:
        states = {state.address: state for state in server.connections}
        for client in self._open(server):
            state = states.get(client.address)
            subscription = f" of {client.topic}/{client.channel}" if client.topic else ""
            names = [
                client.client_id or "without IDENTIFY",
                *([state.user_agent] if state and state.user_agent else []),
            ]
            name = f"the client{subscription} at {client.address} ({', '.join(names)})"
            yield f"{name} is still connected: close it before the test ends"
            if state and state.in_flight:
                messages = "1 message is" if state.in_flight == 1 else f"{state.in_flight} messages are"
                yield f"{messages} in flight to {name}: finish or requeue them before the test ends"


def _blocking_count() -> int:
    """Return the number of open blocking clients. Servers use the thread, too, but have no function at its end."""
    return len(portal_provider().at_end)
