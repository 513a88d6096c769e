"""The nsqlookupd's end of a connection to one nsqd, as a machine without I/O.

Commands are checked in nsqlookupd's order (nsqlookupd/lookup_protocol_v1.go) and answered with its words. Every refusal
is sent, and then the session ends. The registrations of an nsqd are removed before its session has ended, so that a
peer that sees the connection closed does not find them any more. Commands, and the removal of registrations, are
processed in bounded parts, so that no nsqd holds up the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum, auto
from itertools import chain
from typing import Final

from nsqkit.errors import BadChannel, BadTopic, BrokerError, InvalidCommand, ProtocolError
from nsqkit.lookupd.registry import CLIENT, Peer, Registration, Registry
from nsqkit.options.durations import format_duration
from nsqkit.wire.error_codes import encode_error_text, printable_text
from nsqkit.wire.lookup import (
    OK_ANSWER,
    LookupCommand,
    LookupCommandDecoder,
    LookupdInfo,
    decode_node,
    encode_answer,
    encode_info,
)
from nsqkit.wire.names import is_valid_name

OUTBOX_SIZE_MAX: Final = 1 << 16
"""Bytes that wait for a slow reader before nothing more is read from it."""

TURN_COUNT: Final = 100
"""Commands that one call processes, and registrations that it removes, together."""

_REASON_LENGTH_MAX: Final = 200  # characters of a refusal in the log, since it may quote a whole line

logger = logging.getLogger("nsqkit.lookupd")


class State(Enum):
    """The states of a session."""

    CONNECTED = auto()
    IDENTIFIED = auto()
    LEAVING = auto()  # registrations are being removed
    ENDED = auto()


TRANSITIONS: Final[dict[State, dict[str, State]]] = {
    State.CONNECTED: {"PING": State.CONNECTED, "IDENTIFY": State.IDENTIFIED, "end": State.ENDED},
    State.IDENTIFIED: {
        "PING": State.IDENTIFIED,
        "REGISTER": State.IDENTIFIED,
        "UNREGISTER": State.IDENTIFIED,
        "end": State.LEAVING,
    },
    State.LEAVING: {"removed": State.ENDED},
    State.ENDED: {},
}
"""The next state, by state and by command or event."""

REFUSALS: Final = {
    "IDENTIFY": "cannot IDENTIFY again",
    "PING": "",
    "REGISTER": "client must IDENTIFY",
    "UNREGISTER": "client must IDENTIFY",
}
"""The text for each command where TRANSITIONS does not have it; PING is always allowed."""


class Rules:
    """The state of a session, and the commands that it allows."""

    __slots__ = ("_transitions", "state")

    def __init__(self) -> None:
        self.state = State.CONNECTED
        self._transitions = TRANSITIONS[self.state]

    def move(self, event: str) -> None:
        """Go to the next state."""
        self.state = self._transitions[event]
        self._transitions = TRANSITIONS[self.state]

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Check a command and its parameters; raise the BrokerError to answer if it is refused."""
        name = _text(verb)
        if name not in REFUSALS:
            raise InvalidCommand(f"invalid command {name}")
        if name not in self._transitions:
            raise InvalidCommand(REFUSALS[name])
        if verb in (b"REGISTER", b"UNREGISTER"):
            _check_names(name, params)


class Session:
    """One connection of an nsqd, whose IDENTIFY is answered with ``info``; see ``nsqkit.transport.machine``.

    Attributes:
        peer: the nsqd in the registry, from IDENTIFY to the end.
    """

    def __init__(self, registry: Registry, remote_address: str, info: LookupdInfo) -> None:
        self.peer: Peer | None = None
        self._registry = registry
        self._remote_address = remote_address
        self._info = info
        self._rules = Rules()
        self._decoder = LookupCommandDecoder(self._rules)
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        # Of a buffer that is not yet processed to its end.
        self._commands: Iterator[LookupCommand] | None = None
        self._unread: list[bytes] = []  # the buffers after it
        self._eof_received = False

    @property
    def ended(self) -> bool:
        return self._rules.state is State.ENDED

    @property
    def outbox_full(self) -> bool:
        """True while too many answers wait to be sent."""
        return self._outbox_size >= OUTBOX_SIZE_MAX

    @property
    def has_output(self) -> bool:
        return self.ended or bool(self._outbox)

    @property
    def has_input(self) -> bool:
        """True while commands are left to process, or registrations to remove."""
        if self._rules.state is State.LEAVING:
            return True
        return self._commands is not None and not self.outbox_full

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Process at most ``TURN_COUNT`` commands of one read; ``process_input`` processes the rest."""
        if self._is_over:
            return
        self._unread.append(data)
        if self._commands is None:
            self._process_commands(now_ns)

    def process_input(self, now_ns: int) -> None:
        """Process or remove the next ``TURN_COUNT`` commands or registrations."""
        if not self.has_input:
            return
        if self._rules.state is State.LEAVING:
            self._remove_registrations()
        else:
            self._process_commands(now_ns)
            if self._eof_received:
                self.receive_eof(now_ns)

    def receive_eof(self, now_ns: int) -> None:
        """End the session after the commands that were received."""
        if self._is_over:
            return
        if self._commands is not None:
            self._eof_received = True
        elif error := self._decoder.end():
            self._refuse(error)
        else:
            self.end("EOF")

    has_events: Final = False

    def next_deadline(self) -> None:
        """Return None: a session has no deadlines."""

    def handle_deadline(self, now_ns: int) -> None:
        """Do nothing."""

    def events(self) -> tuple[()]:
        """Return nothing: the results are in the registry."""
        return ()

    def data_to_send(self) -> bytes:
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_size = 0
        return data

    def end(self, reason: str) -> None:
        """Process no more commands, and begin to remove the registrations; a second call has no effect."""
        if self._is_over:
            return
        self._commands = None
        self._unread.clear()
        logger.info("PROTOCOL(V1): [%s] exiting ioloop - %s", self._remote_address, reason)
        self._rules.move("end")
        if self._rules.state is State.LEAVING:
            self._remove_registrations()

    @property
    def _is_over(self) -> bool:
        return self._rules.state in (State.LEAVING, State.ENDED)

    def _process_commands(self, now_ns: int) -> None:
        commands, self._commands = self._commands, None
        count = 0
        try:
            while commands is not None or self._unread:
                commands = commands or self._decoder.feed(self._unread.pop(0))
                for command in commands:
                    if command.verb == b"UNREGISTER":
                        count += self._unregister(command, TURN_COUNT - count)
                        if count == TURN_COUNT:  # there may be more
                            self._commands = chain((command,), commands)
                            return
                    self._send(self._answer(command, now_ns))
                    count += 1
                    if count == TURN_COUNT or self.outbox_full:
                        self._commands = commands
                        return
                commands = None
        except BrokerError as error:
            self._refuse(error)
        except ProtocolError as error:
            self.end(str(error))

    def _remove_registrations(self) -> None:
        assert self.peer is not None
        self._log("UNREGISTER", self._registry.remove_peer(self.peer, TURN_COUNT))
        if self.peer not in self._registry:
            self.peer = None
            self._rules.move("removed")

    def _refuse(self, error: BrokerError) -> None:
        logger.error("[%s] - %s", self._remote_address, printable_text(str(error)[:_REASON_LENGTH_MAX]))
        self._send(encode_answer(encode_error_text(error)))
        self.end("refused")

    def _send(self, answer: bytes) -> None:
        self._outbox.append(answer)
        self._outbox_size += len(answer)

    def _answer(self, command: LookupCommand, now_ns: int) -> bytes:
        if command.verb == b"IDENTIFY":
            answer = self._identify(command.body, now_ns)
            self._rules.move("IDENTIFY")
            return answer
        if command.verb == b"PING":
            self._ping(now_ns)
        elif command.verb == b"REGISTER":
            assert self.peer is not None
            self._log("REGISTER", self._registry.register(self.peer, *command.params[:2]))
        return OK_ANSWER  # the other commands do not change the state

    def _unregister(self, command: LookupCommand, count: int) -> int:
        """Remove at most ``count`` registrations; return how many were removed."""
        assert self.peer is not None
        removed = self._registry.unregister(self.peer, *command.params[:2], count=count)
        self._log("UNREGISTER", removed)
        return len(removed)

    def _identify(self, body: bytes, now_ns: int) -> bytes:
        node = decode_node(body)
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            *(self._remote_address, node.broadcast_address, node.tcp_port, node.http_port, node.version),
        )
        self.peer = self._registry.add_peer(self._remote_address, node, now_ns)
        self._log("REGISTER", [CLIENT])
        return encode_answer(encode_info(self._info))

    def _ping(self, now_ns: int) -> None:
        if self.peer is not None:  # PING is allowed before IDENTIFY
            silence = format_duration(now_ns - self.peer.last_update_ns)
            logger.info("CLIENT(%s): pinged (last ping %s)", self._remote_address, silence)
            self.peer.last_update_ns = now_ns

    def _log(self, verb: str, registrations: list[Registration]) -> None:
        for registration in registrations:
            logger.info("DB: client(%s) %s %s", self._remote_address, verb, registration)


def _check_names(verb: str, params: list[bytes]) -> None:
    if not params:
        raise InvalidCommand(f"{verb} insufficient number of params")
    topic, channel = (*params, b"")[:2]
    if not is_valid_name(topic):
        raise BadTopic(f"{verb} topic name '{_text(topic)}' is not valid")
    if channel and not is_valid_name(channel):
        raise BadChannel(f"{verb} channel name '{_text(channel)}' is not valid")


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")
