r"""The V1 protocol between an nsqd and an nsqlookupd.

    "  V1"                                    once, first
    VERB word …\n                             PING REGISTER UNREGISTER
    IDENTIFY\n | size int32 | JSON
    size int32 | payload                      each answer: OK, a JSON document or an error's text

Each command has one answer, in order, and every buffer has a limit. nsqlookupd itself reads lines and bodies of any
length; the limits here are far above all useful ones. As in ``nsqkit.wire.commands``, the decoder applies the ``Rules``
that it was given to each line before it reads the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import Struct
from typing import Final

import attrs

from nsqkit.errors import BadBody, BadProtocol, BrokerError, ProtocolError
from nsqkit.wire.documents import field_types_of, read_object
from nsqkit.wire.rules import Rules

MAGIC_V1: Final = b"  V1"
PING: Final = b"PING\n"
OK: Final = b"OK"

LINE_LENGTH_MAX: Final = 1 << 20
"""Bytes of a line without its newline. A longer one ends the connection without an answer."""

BODY_LENGTH_MAX: Final = 1 << 20
"""Bytes that the body of IDENTIFY may have."""

_INT32 = Struct(">i")
# The characters that Go's strings.TrimSpace removes from the ends of a line.
_GO_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_GO_SPACE += "\u2028\u2029\u202f\u205f\u3000"


@attrs.frozen(kw_only=True)
class Node:
    """The description of an nsqd in IDENTIFY."""

    broadcast_address: str
    hostname: str = ""
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""


@attrs.frozen(kw_only=True)
class LookupdInfo:
    """The description of an nsqlookupd in its answer to IDENTIFY; fields that it omits are empty or 0."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""


# nsqlookupd checks and overwrites remote_address.
_NODE_TYPES: Final = {**field_types_of(Node), "remote_address": str}
_INFO_TYPES: Final = field_types_of(LookupdInfo)


def _encode_document(value: attrs.AttrsInstance) -> bytes:
    return json.dumps(attrs.asdict(value), separators=(",", ":"), sort_keys=True).encode()


# ---- the client: nsqd ---------------------------------------------------------------------------------------------


def encode_identify(node: Node) -> bytes:
    document = _encode_document(node)
    return b"IDENTIFY\n" + _INT32.pack(len(document)) + document


def encode_register(topic: bytes, channel: bytes = b"") -> bytes:
    """Return REGISTER of a channel with its topic, or of a topic alone."""
    return _encode_line(b"REGISTER", topic, channel)


def encode_unregister(topic: bytes, channel: bytes = b"") -> bytes:
    """Return UNREGISTER of a channel, or of a topic with all its channels."""
    return _encode_line(b"UNREGISTER", topic, channel)


def _encode_line(verb: bytes, topic: bytes, channel: bytes) -> bytes:
    return b" ".join(filter(None, (verb, topic, channel))) + b"\n"


def decode_info(payload: bytes) -> LookupdInfo:
    """Return the answer to IDENTIFY.

    Raises:
        ProtocolError: the payload is not a JSON object with values of the right types; it may be an error's text.
    """
    try:
        return LookupdInfo(**read_object(payload, _INFO_TYPES))
    except ValueError as error:
        raise ProtocolError(f"the answer to IDENTIFY cannot be understood: {payload[:200]!r}") from error


class AnswerDecoder:
    """Turn received bytes into answers of at most ``answer_size_max`` bytes (in nsqd ``--max-body-size``)."""

    __slots__ = ("_buffer", "answer_size_max")

    def __init__(self, *, answer_size_max: int) -> None:
        self.answer_size_max = answer_size_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the answers that ``data`` completes, in order.

        Raises:
            ProtocolError: a size below 0 or above the limit. The decoder must not be used afterwards.
        """
        buffer = self._buffer
        buffer += data
        answers = []
        position = 0
        while position + 4 <= len(buffer):
            size: int = _INT32.unpack_from(buffer, position)[0]
            if not 0 <= size <= self.answer_size_max:
                raise ProtocolError(f"answer size {size} is out of range 0-{self.answer_size_max}")
            after = position + 4 + size
            if after > len(buffer):
                break
            answers.append(bytes(buffer[position + 4 : after]))
            position = after
        del buffer[:position]
        return answers


# ---- the server: nsqlookupd ------------------------------------------------------------------------------------------


@attrs.frozen
class LookupCommand:
    """A command: its first word, the other words, and the body of IDENTIFY."""

    verb: bytes
    params: list[bytes]
    body: bytes = b""


def encode_answer(payload: bytes) -> bytes:
    return _INT32.pack(len(payload)) + payload


OK_ANSWER: Final = encode_answer(OK)


def encode_info(info: LookupdInfo) -> bytes:
    return _encode_document(info)


def decode_node(body: bytes) -> Node:
    """Return the description in the body of IDENTIFY.

    Raises:
        BadBody: the body is not a JSON object, a value has another type than its field, or a required field is missing.
    """
    try:
        fields = read_object(body, _NODE_TYPES)
    except ValueError as error:
        raise BadBody("IDENTIFY failed to decode JSON body") from error
    if not all(fields.get(name) for name in ("broadcast_address", "tcp_port", "http_port", "version")):
        raise BadBody("IDENTIFY missing fields")
    fields.pop("remote_address", None)
    return Node(**fields)


class LookupCommandDecoder:
    """Turn received bytes into commands; the rules are applied to each before its body is read."""

    __slots__ = ("_buffer", "_cut_off", "_has_magic", "_identify_params", "_rules", "_scanned")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._buffer = bytearray()
        self._scanned = 0  # bytes at its beginning that have no newline
        self._has_magic = False
        self._identify_params: list[bytes] | None = None  # while the body of IDENTIFY is incomplete
        self._cut_off: BrokerError | None = None

    def feed(self, data: bytes) -> Iterator[LookupCommand]:
        """Yield the commands that ``data`` completes, in order.

        The caller executes each command before it takes the next one, so that the rules see the state after it.

        Raises:
            BrokerError: refused; the error to answer. The decoder must not be used afterwards.
            ProtocolError: a line is too long; the connection must be closed without an answer.
        """
        self._buffer += data
        if not self._has_magic:
            if len(self._buffer) < len(MAGIC_V1):
                return
            if self._take(len(MAGIC_V1)) != MAGIC_V1:
                raise BadProtocol
            self._has_magic = True
        while command := self._read_line() if self._identify_params is None else self._read_body():
            yield command

    def end(self) -> BrokerError | None:
        """Return the error to answer if the stream ends now; None if no body is incomplete."""
        return self._cut_off

    def _read_line(self) -> LookupCommand | None:
        newline = self._buffer.find(b"\n", self._scanned)
        self._scanned = len(self._buffer) if newline < 0 else newline
        if self._scanned > LINE_LENGTH_MAX:
            raise ProtocolError(f"a command line is longer than {LINE_LENGTH_MAX} bytes")
        if newline < 0:
            return None
        verb, *params = _split_words(self._take(newline + 1))
        self._scanned = 0
        self._rules.check(verb, params)
        if verb != b"IDENTIFY":
            return LookupCommand(verb, params)
        self._identify_params = params
        return self._read_body()

    def _read_body(self) -> LookupCommand | None:
        assert self._identify_params is not None
        if len(self._buffer) < 4:
            self._cut_off = BadBody("IDENTIFY failed to read body size")
            return None
        size: int = _INT32.unpack_from(self._buffer)[0]
        if size < 0:
            raise BadBody(f"IDENTIFY invalid body size {size}")
        if size > BODY_LENGTH_MAX:
            raise BadBody(f"IDENTIFY body too big {size} > {BODY_LENGTH_MAX}")
        if len(self._buffer) < 4 + size:
            self._cut_off = BadBody("IDENTIFY failed to read body")
            return None
        command = LookupCommand(b"IDENTIFY", self._identify_params, self._take(4 + size)[4:])
        self._identify_params = None
        self._cut_off = None
        return command

    def _take(self, length: int) -> bytes:
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data


def _split_words(line: bytes) -> list[bytes]:
    if line.isascii():
        return line.strip().split(b" ")
    words = line.decode("utf-8", "surrogateescape").strip(_GO_SPACE).split(" ")
    return [word.encode("utf-8", "surrogateescape") for word in words]
