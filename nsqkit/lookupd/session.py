"""One nsqd that talks to the nsqlookupd: the server's side of a connection, without the connection.

The rule it guards: a command is looked at in nsqlookupd's order (nsqlookupd, lookup_protocol_v1.go) and answered with
its words. Every refusal is fatal: it is sent, and the session ends. Before a session has ended, what its nsqd has
registered is gone, so that a peer that sees the connection closed sees the registrations gone. Commands, and the
registrations at the end, are worked on in turns, so that no nsqd keeps the others waiting.

How to read it: the verbs of a machine, then one method a command; ``Rules`` says which command may come when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from nsqkit.errors import BadChannel, BadTopic, BrokerError, InvalidCommand, ProtocolError
from nsqkit.lookupd.registry import CLIENT, Peer, Registration, Registry
from nsqkit.options.durations import format_duration
from nsqkit.wire.error_codes import encode_error_text
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
"""Commands that are acted on in one turn, and registrations that are taken back in one."""

_REASON_LENGTH_MAX: Final = 200  # characters of a refusal in the log: it may quote a whole line

logger = logging.getLogger("nsqkit.lookupd")


class Rules:
    """Which command is allowed in the present state of a session.

    Attributes:
        is_identified: IDENTIFY has come.
    """

    __slots__ = ("is_identified",)

    def __init__(self) -> None:
        self.is_identified = False

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Refuse a command that is not allowed now, or whose words are wrong.

        Raises:
            BrokerError: what to answer.
        """
        if verb == b"IDENTIFY":
            if self.is_identified:
                raise InvalidCommand("cannot IDENTIFY again")
        elif verb in (b"REGISTER", b"UNREGISTER"):
            if not self.is_identified:
                raise InvalidCommand("client must IDENTIFY")
            _check_names(verb.decode(), params)
        elif verb != b"PING":
            raise InvalidCommand(f"invalid command {_text(verb)}")


class Session:
    """The state of one connection.

    Args:
        registry: where the nsqd registers.
        remote_address: ``host:port`` that it has connected from.
        info: what it is told when it identifies itself.

    Attributes:
        peer: what the registry knows it as, from IDENTIFY to the end.
        ended: the connection is to be closed when the outbox is sent.
    """

    def __init__(self, registry: Registry, remote_address: str, info: LookupdInfo) -> None:
        self.peer: Peer | None = None
        self.ended = False
        self._registry = registry
        self._remote_address = remote_address
        self._info = info
        self._rules = Rules()
        self._decoder = LookupCommandDecoder(self._rules)
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._commands: Iterator[LookupCommand] | None = (
            None  # those of a buffer that are left for the next turn
        )
        self._unread: list[bytes] = []  # what came meanwhile
        self._eof_came = False
        self._is_leaving = False  # no more commands are acted on, and registrations are taken back

    # ---- the verbs of a machine ----------------------------------------------------------------------------------

    @property
    def outbox_full(self) -> bool:
        """True while the nsqd does not read what it was answered."""
        return self._outbox_size >= OUTBOX_SIZE_MAX

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or an end to be carried out."""
        return self.ended or bool(self._outbox)

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Work through what one read has returned, as far as one turn goes."""
        if self._is_leaving:
            return
        self._unread.append(data)
        if self._commands is None:
            self._take_turn(now_ns)

    @property
    def has_input(self) -> bool:
        """True while commands, or registrations that are to be taken back, are left for the next turn."""
        if self._is_leaving:
            return not self.ended
        return self._commands is not None and not self.outbox_full

    def process_input(self, now_ns: int) -> None:
        """Do what is left, as far as one turn goes."""
        if not self.has_input:
            return
        if self._is_leaving:
            self._leave()
        else:
            self._take_turn(now_ns)
            if self._eof_came:
                self.receive_eof(now_ns)

    def receive_eof(self, now_ns: int) -> None:
        """Record that the nsqd sends nothing more: that ends the session when all it has sent is acted on."""
        if self._is_leaving:
            return
        if self._commands is not None:
            self._eof_came = True
        elif error := self._decoder.end():
            self._refuse(error)
        else:
            self.end("EOF")

    def _take_turn(self, now_ns: int) -> None:
        commands, self._commands = self._commands, None
        count = 0
        try:
            while commands is not None or self._unread:
                commands = commands or self._decoder.feed(self._unread.pop(0))
                for command in commands:
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

    has_events: Final = False

    def events(self) -> tuple[()]:
        """Return nothing: what happens in a session is seen in the registry."""
        return ()

    def data_to_send(self, now_ns: int) -> bytes:
        """Return what must be written, and forget it."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_size = 0
        return data

    def end(self, reason: str) -> None:
        """Take no more commands, and begin to take back what is registered; a second call changes nothing."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._commands = None
        self._unread.clear()
        logger.info("PROTOCOL(V1): [%s] exiting ioloop - %s", self._remote_address, reason)
        self._leave()

    def _leave(self) -> None:
        """Take back registrations; the session has ended when none is left."""
        if self.peer is not None:
            self._log("UNREGISTER", self._registry.remove_peer(self.peer, TURN_COUNT))
            if self.peer in self._registry:
                return
            self.peer = None
        self.ended = True

    def _refuse(self, error: BrokerError) -> None:
        logger.error("[%s] - %s", self._remote_address, str(error)[:_REASON_LENGTH_MAX])
        self._send(encode_answer(encode_error_text(error)))
        self.end("refused")

    def _send(self, answer: bytes) -> None:
        self._outbox.append(answer)
        self._outbox_size += len(answer)

    # ---- commands ------------------------------------------------------------------------------------------------

    def _answer(self, command: LookupCommand, now_ns: int) -> bytes:
        if command.verb == b"IDENTIFY":
            return self._identify(command.body, now_ns)
        if command.verb == b"PING":
            self._ping(now_ns)
        else:
            assert self.peer is not None
            self._change(self.peer, command.verb, *command.params[:2])
        return OK_ANSWER

    def _identify(self, body: bytes, now_ns: int) -> bytes:
        node = decode_node(body)
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            *(self._remote_address, node.broadcast_address, node.tcp_port, node.http_port, node.version),
        )
        self.peer = self._registry.add_peer(self._remote_address, node, now_ns)
        self._rules.is_identified = True
        self._log("REGISTER", [CLIENT])
        return encode_answer(encode_info(self._info))

    def _ping(self, now_ns: int) -> None:
        if self.peer is not None:  # a client may ask whether anybody is there before it says who it is
            silence = format_duration(now_ns - self.peer.last_update_ns)
            logger.info("CLIENT(%s): pinged (last ping %s)", self._remote_address, silence)
            self.peer.last_update_ns = now_ns

    def _change(self, peer: Peer, verb: bytes, topic: bytes, channel: bytes = b"") -> None:
        if verb == b"REGISTER":
            self._log("REGISTER", self._registry.register(peer, topic, channel))
        else:
            self._log("UNREGISTER", self._registry.unregister(peer, topic, channel))

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
