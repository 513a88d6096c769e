"""One of the two programs of a comparison, with the connections of one sequence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

from tests.differential.http_client import HttpClient
from tests.differential.plan import Step
from tests.differential.program import Program
from tests.differential.views import View, answer_view, message_counts
from tests.differential.wire import CLOSED, SILENCE, Connection, Delivery

UNKNOWN_ID: Final = b"0123456789abcdef"
IMMEDIATE: Final = b'"output_buffer_size":-1'
"""In the document of an IDENTIFY: then nsqd writes each message at once."""

_REFERENCE: Final = re.compile(rb"<([a-z]+)(\d*)>")
_ID: Final = re.compile(r"[0-9a-f]{16}")


@attrs.frozen
class Dialect:
    """The parts of the protocol in which nsqd and nsqlookupd differ.

    Attributes:
        magic: the first bytes of a connection.
        typed: whether frames have a type.
        barrier: a command that is legal in every state and is answered once.
        settled_paths: answers that are equal when both programs have done everything.
    """

    magic: str
    typed: bool
    barrier: str
    settled_paths: tuple[str, ...]


DIALECTS: Final = {
    "nsqd": Dialect("  V2", True, "PUB <sink>\n\0\0\0\1b", ("/stats?format=json&include_mem=false",)),
    "nsqlookupd": Dialect("  V1", False, "PING\n", ("/debug", "/nodes", "/topics")),
}


class Side:
    """A program in a comparison.

    Args:
        program: it runs.
        dialect: of the program.

    Attributes:
        prefix: the beginning of the names of this sequence's topics.
        connections: those of this sequence, by name.
        identities: the id and timestamp of each message by body, as they must stay.
    """

    def __init__(self, program: Program, dialect: Dialect) -> None:
        self.program = program
        self.dialect = dialect
        self.prefix = ""
        self.connections: dict[str, Connection] = {}
        self.identities: dict[tuple[str, bytes], tuple[bytes, int]] = {}
        self._labels: dict[int, str] = {}
        self._bodies: dict[str, str] = {}
        self._http: HttpClient | None = None
        self._path = ""

    def begin(self, prefix: str) -> None:
        """Begin a sequence."""
        self.prefix = prefix
        self.connections.clear()
        self.identities.clear()
        self._labels.clear()
        self._bodies.clear()

    def fill(self, text: str) -> bytes:
        """Return a text of a plan with its references replaced."""
        return _REFERENCE.sub(self._replacement, text.encode("latin-1"))

    def _replacement(self, found: re.Match[bytes]) -> bytes:
        name, number = found[1].decode(), found[2]
        if name in {"t", "sink"}:
            return f"{self.prefix}{name}{number.decode()}".encode()
        if name == "http":
            return f"127.0.0.1:{self.program.http[1]}".encode()
        if not number:
            return found[0]
        connection = self.connections.get(name)
        if connection is None or not connection.deliveries:
            return UNKNOWN_ID
        return connection.deliveries[int(number) % len(connection.deliveries)].id

    def connect(self, step: Step) -> None:
        """Connect, and send the magic."""
        name = step.values["on"]
        connection = Connection(self.program.tcp, typed=self.dialect.typed)
        self.connections[name] = connection
        self._labels[connection.port] = name
        magic = step.values.get("magic")
        connection.send((magic or self.dialect.magic).encode("latin-1"), ends=magic is not None)

    def connected(self, step: Step) -> dict[str, Any]:
        """Return the answers to a wrong magic."""
        answers = self.connections[step.values["on"]].answers(None) if "magic" in step.values else []
        return numbered(answers)

    def send(self, step: Step) -> None:
        """Write commands, and a barrier behind them."""
        connection = self.connections[step.values["on"]]
        data = self.fill(step.values["data"])
        if not step.values.get("ends"):
            data += self.fill(self.dialect.barrier)
        connection.send(data, ends=step.values.get("ends", False))

    def sent(self, step: Step) -> dict[str, Any]:
        """Return the answers to ``send``, without that to the barrier."""
        connection = self.connections[step.values["on"]]
        if step.values.get("ends"):
            answers = connection.answers(None)
        else:
            answers = connection.answers(step.values["answers"] + 1)
            if answers[-1] not in {CLOSED, SILENCE}:
                del answers[-1]  # that to the barrier
        if connection.is_open and not any(answer.startswith("error") for answer in answers):
            self._record(connection, step)
        return numbered(map(self._answer_view, answers))

    def _answer_view(self, answer: str) -> Any:
        if answer.startswith("response {"):
            own = {self.program.tcp[1]: "own TCP port", self.program.http[1]: "own HTTP port"}
            document = json.loads(answer.partition(" ")[2])
            return {"response": {name: own.get(value, value) for name, value in document.items()}}
        return _ID.sub(lambda found: self._bodies.get(found[0], found[0]), answer)

    def _record(self, connection: Connection, step: Step) -> None:
        values = step.values
        connection.channel = values.get("sub") or connection.channel
        connection.ready = values.get("ready", connection.ready)
        if "output_buffer_size" in values["data"]:  # of a further IDENTIFY, nsqd takes the size, but no timeout
            connection.immediate = IMMEDIATE in values["data"].encode("latin-1")

    def request(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> None:
        """Write an HTTP request."""
        if self._http is None:
            self._http = HttpClient(self.program.http)
        self._path = path
        filled = None if body is None else self.fill(body)
        self._http.send(method, self.fill(path).decode("latin-1"), filled, headers)

    def answer(self) -> View:
        """Return the view of the answer to ``request``."""
        assert self._http is not None
        return answer_view(self._path, self._http.receive(), self._labels, self.prefix)

    def collect(self, view: View, seconds: float) -> bool:
        """Read the messages that were sent according to the stats; return whether all have arrived."""
        found = True
        for name, count in message_counts(view).items():
            found &= self.connections[name].collect(count, seconds)
        return found

    def flush(self) -> None:
        """Have nsqd write the messages in its output buffers, by an answered command on each such connection."""
        waiting = [
            connection
            for connection in self.connections.values()
            if connection.is_open and connection.ready and not connection.immediate
        ]
        for connection in waiting:
            connection.send(self.fill(self.dialect.barrier))
        for connection in waiting:
            connection.answers(1)

    def take(self) -> dict[str, list[Any]]:
        """Return the new messages of each connection: body, attempts, and a sentence if another part is wrong."""
        return {
            name: [self._message(connection.channel, delivery) for delivery in connection.take()]
            for name, connection in self.connections.items()
        }

    def _message(self, channel: str, delivery: Delivery) -> list[Any]:
        text = delivery.id.decode("latin-1")
        body = delivery.body.decode("latin-1")
        self._bodies[text] = f"<id of {body}>"
        key = (channel.partition("/")[0], delivery.body)
        identity = self.identities.setdefault(key, (delivery.id, delivery.timestamp))
        message = [body, delivery.attempts]
        if not _ID.fullmatch(text):
            message.append(f"its id is {text!r}")
        if identity != (delivery.id, delivery.timestamp):
            message.append("its id or its timestamp has changed")
        return message

    def close(self, name: str) -> bool:
        """Close a connection, if there is one; return whether it was open, and had subscribed."""
        if name not in self.connections:
            return False
        connection = self.connections[name]
        was_subscribed = connection.is_open and bool(connection.channel)
        connection.close()
        return was_subscribed

    def stop(self) -> None:
        """Stop the program; its connections end."""
        self.disconnect()
        self.program.stop()

    def disconnect(self) -> None:
        """Close all connections, also that for HTTP."""
        self.close_all()
        if self._http is not None:
            self._http.close()
        self._http = None

    def close_all(self) -> None:
        """Close all connections of the sequence."""
        for connection in self.connections.values():
            connection.close()

    def is_closed(self, name: str) -> bool:
        """Return whether there is no such open connection."""
        return name not in self.connections or not self.connections[name].is_open


def numbered(answers: Iterable[Any]) -> dict[str, Any]:
    """Return answers by their number from 1 on, so that a difference names one of them."""
    return {str(number): answer for number, answer in enumerate(answers, 1)}
