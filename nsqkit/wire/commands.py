r"""Commands: the bytes from a client to a broker.

    VERB word word …\n                                   SUB RDY FIN REQ TOUCH CLS NOP
    VERB word …\n | size int32 | body                     IDENTIFY AUTH PUB DPUB
    MPUB topic\n  | size int32 | count int32 | count times (size int32 | body)

The decoder processes a whole receive buffer at a time and checks every number as soon as it has arrived. Complete,
well-formed commands are decoded in bulk: a run of FINs with one ``split``, an MPUB with one ``unpack``, PUBs to one
topic as one run. All others go through a reader (``nsqkit.wire.bodies``), so that errors are raised at the same byte
and with the same text as nsqd's.

The decoder does not decide whether a command is allowed: it applies the ``Rules`` that it was given to each line before
it reads the body (docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

import attrs

from nsqkit.errors import BadProtocol, BrokerError, ProtocolError
from nsqkit.wire.bodies import READERS, Need, Read, Reader, split_batch
from nsqkit.wire.identify import NS_PER_MS
from nsqkit.wire.messages import ID_LENGTH
from nsqkit.wire.rules import Rules

MAGIC_V2: Final = b"  V2"
LINE_LENGTH_MAX: Final = 16384
"""Bytes of a line with its newline: nsqd's read buffer. A longer one ends the connection without an answer."""

NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"

BARRIER_ID: Final = b"0" * ID_LENGTH
"""An id that no message has, since nsqd's ids contain the time. A consumer finishes it to receive the refusal."""

MPUB_HEAD: Final = b"MPUB head"
"""The verb of a command that precedes an MPUB whose body has not come whole, or is wrong.

nsqd checks the authorization for an MPUB and creates its topic before it reads the body. No client can send this verb:
it has a space in it.
"""

_INT32 = Struct(">i")
_TWO_INT32 = Struct(">ii")
_PUBLISHES = frozenset((b"PUB", b"DPUB"))
_FIN_PREFIX = b"FIN "
_FIN_LENGTH = len(_FIN_PREFIX) + ID_LENGTH + 1
_FIN_RUN_MAX = 100  # other sessions wait meanwhile; and a longer look ahead makes mixed commands quadratic
_FINS_LENGTH_MAX = _FIN_RUN_MAX * _FIN_LENGTH
_PLAIN_FINS = object()  # stands for the params of all runs of FINs, since their ids have the right length
_PUB_RUN_MAX = 2000  # one read has about as many bodies of 100 bytes
_CHUNKS_MAX = 1024  # pieces of an incomplete body before they are joined, since each piece has overhead
_UINT64 = 1 << 64


# ---- the client: encode ----------------------------------------------------------------------------------


def encode_identify(document: bytes) -> bytes:
    return b"IDENTIFY\n" + _INT32.pack(len(document)) + document


def encode_auth(secret: bytes) -> bytes:
    return b"AUTH\n" + _INT32.pack(len(secret)) + secret


def encode_subscribe(topic: bytes, channel: bytes) -> bytes:
    return b"SUB %b %b\n" % (topic, channel)


def encode_ready(rdy_count: int) -> bytes:
    return b"RDY %d\n" % rdy_count


def encode_finish(message_id: bytes) -> bytes:
    return b"FIN " + message_id + b"\n"


def encode_finishes(message_ids: Iterable[bytes]) -> bytes:
    """Return a FIN for each of one or more ids."""
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def encode_requeue(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def encode_touch(message_id: bytes) -> bytes:
    return b"TOUCH " + message_id + b"\n"


def encode_publish(topic: bytes, body: bytes) -> bytes:
    return b"PUB " + topic + b"\n" + _INT32.pack(len(body)) + body


def encode_deferred_publish(topic: bytes, body: bytes, delay_ms: int) -> bytes:
    return b"DPUB %b %d\n%b%b" % (topic, delay_ms, _INT32.pack(len(body)), body)


def encode_multi_publish(topic: bytes, bodies: Sequence[bytes]) -> bytes:
    return _encode_batch(b"MPUB " + topic + b"\n", bodies, has_size=True)


def encode_batch(bodies: Sequence[bytes]) -> bytes:
    """Return the part of an MPUB after its size, which is also the body of nsqd's ``/mpub?binary=true``."""
    return _encode_batch(b"", bodies, has_size=False)


def batch_size(bodies: Sequence[bytes]) -> int:
    """Return the size in an MPUB with these bodies: the number of bytes after it."""
    return 4 + 4 * len(bodies) + sum(map(len, bodies))


def equal_batch_size(count: int, length: int) -> int:
    """Return the same for ``count`` bodies of one length."""
    return 4 + count * (4 + length)


def _encode_batch(head: bytes, bodies: Sequence[bytes], *, has_size: bool) -> bytes:
    """Return head, size of the rest, count and bodies; each body is copied once."""
    count = len(bodies)
    packed = {length: _INT32.pack(length) for length in set(map(len, bodies))}
    if len(packed) == 1:
        ((length, prefix),) = packed.items()
        size = _INT32.pack(equal_batch_size(count, length)) if has_size else b""
        return prefix.join((head + size + _INT32.pack(count), *bodies))
    if has_size:
        head += _INT32.pack(batch_size(bodies))
    head += _INT32.pack(count)
    parts = [head] * (2 * count + 1)
    parts[1::2] = [packed[len(body)] for body in bodies]
    parts[2::2] = bodies
    return b"".join(parts)


# ---- the broker: decode ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Command:
    """One command, or a run of FINs, or a run of PUBs to one topic.

    Attributes:
        verb: the first word, or MPUB_HEAD.
        params: the other words; of FIN the ids, of one command or of a run.
        bodies: the one body of IDENTIFY, AUTH or DPUB; the messages of an MPUB, a PUB or a run of PUBs.
    """

    verb: bytes
    params: list[bytes]
    bodies: Sequence[bytes] = ()

    def __repr__(self) -> str:
        bodies = "…" if self.verb == b"AUTH" else repr(self.bodies)  # the body of AUTH is a secret
        return f"Command(verb={self.verb!r}, params={self.params!r}, bodies={bodies})"


def parse_number(word: bytes) -> int:
    """Return the number that nsqd reads: digits, wrapped to 64 bits, 0 if empty; raise ValueError for others."""
    if not word:
        return 0
    if not word.isdigit():
        raise ValueError(word)
    return _wrap(int(word[-64:]))  # 2**64 divides 10**64, so earlier digits have no effect


def milliseconds_ns(milliseconds: int) -> int:
    """Return nanoseconds, wrapped to 64 bits as in nsqd."""
    return _wrap(milliseconds * NS_PER_MS)


def _wrap(number: int) -> int:
    number %= _UINT64
    return number - _UINT64 if number >= _UINT64 >> 1 else number


class CommandDecoder:
    """Turn received bytes into commands; the rules are applied to each before its body is read.

    The limits are bytes: ``max_msg_size`` for a message, ``max_body_size`` for the body of IDENTIFY, AUTH and MPUB.
    """

    __slots__ = (
        *("_alone", "_alone_size", "_checked", "_chunks", "_data", "_line", "_missing", "_need", "_params"),
        *("_position", "_reader", "_rules", "_state", "_verb", "_words", "max_body_size", "max_msg_size"),
    )

    def __init__(self, rules: Rules, *, max_msg_size: int, max_body_size: int) -> None:
        self._rules = rules
        self.max_msg_size = max_msg_size
        self.max_body_size = max_body_size
        self._data = b""  # the current buffer …
        self._position = 0  # … the beginning of the next command in it …
        self._chunks: list[bytes] = []  # … and later pieces, joined when they have enough bytes
        self._missing = 0  # bytes that must come before the next attempt to decode
        self._reader: Reader | None = None
        self._need = Need(0)  # the bytes that the reader needs
        self._verb = b""  # the command whose body is read; empty for the magic
        self._params: list[bytes] = []
        self._line = b""  # the last line, since a producer repeats it …
        self._words: tuple[bytes, list[bytes]] = (b"", [])  # … with its verb and params
        self._checked: object = None  # the params that the rules have allowed last …
        self._state: object = None  # … in this state of theirs
        # The last command with one body that was a whole buffer: the bytes before the body, its words, and its size.
        # A producer that waits for each answer sends similar buffers.
        self._alone: tuple[bytes, bytes, list[bytes]] = (b"", b"", [])
        self._alone_size = -1
        self._start(_read_magic())

    def feed(self, data: bytes) -> Iterator[Command]:
        """Return an iterator over the commands that ``data`` completes, in order.

        The caller executes each command before it takes the next one, so that the rules see the state after it. If
        executing it takes the rest of the buffer, this iteration ends.

        Raises:
            BrokerError: refused; the error to answer. The decoder must not be used afterwards.
            ProtocolError: a line is too long; the connection must be closed without an answer.
        """
        if self._data:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                if len(self._chunks) == _CHUNKS_MAX:
                    self._chunks = [b"".join(self._chunks)]
                return iter(())
            data = self.take_rest()
        elif self._reader is None and (command := self._whole_buffer(data)) is not None:
            return iter((command,))
        return self._decode(data)

    def _whole_buffer(self, data: bytes) -> Command | None:
        """Return the command that a buffer consists of, if it is a frequent one."""
        head, verb, params = self._alone
        if len(data) == self._alone_size and data.startswith(head):
            if params is not self._checked or self._state is not self._rules.state:
                self._check(verb, params, params)
            return Command(verb, params, (data[len(head) :],))
        if len(data) <= _FINS_LENGTH_MAX and len(data) % _FIN_LENGTH == 0 and data.startswith(_FIN_PREFIX):
            ids = _finish_run(data, 0)
            if len(ids) * _FIN_LENGTH == len(data):
                if _PLAIN_FINS is not self._checked or self._state is not self._rules.state:
                    self._check(b"FIN", ids, _PLAIN_FINS)
                return Command(b"FIN", ids)
        return None

    def _check(self, verb: bytes, params: list[bytes], known_as: object) -> None:
        self._rules.check(verb, params)
        self._checked, self._state = known_as, self._rules.state

    def _decode(self, data: bytes) -> Iterator[Command]:
        self._data = data
        self._position = 0
        self._missing = 0
        while not self._missing:
            if self._reader is not None:
                command = self._resume()
            elif self._position == len(self._data):
                self._data = b""
                self._position = 0
                return
            elif self._data.startswith(_FIN_PREFIX, self._position):
                command = self._next_run() or self._next_line()
            else:
                command = self._next_line()
            if command is not None:
                yield command

    @property
    def is_drained(self) -> bool:
        """True after the last command of its buffer: the iteration that yielded it yields no more."""
        return self._position == len(self._data)

    def end(self) -> BrokerError | None:
        """Return the error to answer if the stream ends now; None if no body is incomplete."""
        return self._need.cut_off

    def take_rest(self) -> bytes:
        """Return and forget the bytes after the last command, which belong to the layer that begins there."""
        rest = b"".join((self._data[self._position :], *self._chunks))
        self._data = b""
        self._position = 0
        self._chunks.clear()
        return rest

    def _keep(self, missing: int) -> None:
        """Keep the rest of the buffer until ``missing`` more bytes have come."""
        self._data = self._data[self._position :]
        self._position = 0
        self._missing = missing

    def _next_run(self) -> Command | None:
        """Decode a run of FINs; return None if the FIN that begins here is not a plain one."""
        ids = _finish_run(self._data, self._position)
        if not ids:
            return None
        self._rules.check(b"FIN", ids)
        self._position += _FIN_LENGTH * len(ids)
        return Command(b"FIN", ids)

    def _next_line(self) -> Command | None:
        """Decode one line, and its body if all of it has come; else start the body's reader or keep the rest."""
        data, start = self._data, self._position
        if self._line and data.startswith(self._line, start):
            return self._act_on_line(start + len(self._line))
        newline = data.find(b"\n", start)
        length = (newline + 1 if newline >= 0 else len(data)) - start
        if length > LINE_LENGTH_MAX or (newline < 0 and length == LINE_LENGTH_MAX):
            raise ProtocolError(f"a command line is longer than {LINE_LENGTH_MAX} bytes")
        if newline < 0:
            self._keep(1)
            return None
        self._line = data[start : newline + 1]
        self._words = _split_line(self._line)
        return self._act_on_line(newline + 1)

    def _act_on_line(self, position: int) -> Command | None:
        """Return the command of the current line, whose body, if it has one, begins at ``position``."""
        self._position = position
        verb, params = self._words
        if params is not self._checked or self._state is not self._rules.state:
            self._check(verb, params, params)
        if verb not in READERS:
            return Command(verb, params)
        bodies = self._whole(verb, self._line)
        if bodies:
            size = self._position
            if len(bodies) == 1 and size == len(self._data) and position == len(self._line):
                self._alone = self._data[: size - len(bodies[0])], verb, params
                self._alone_size = size
            return Command(verb, params, bodies)
        self._verb, self._params = verb, params
        self._start(READERS[verb](verb.decode(), self))
        return Command(MPUB_HEAD, params) if verb == b"MPUB" else None

    def _whole(self, verb: bytes, line: bytes) -> Sequence[bytes]:
        """Return the bodies of a command if they have come whole and are valid, else nothing.

        The bodies of further PUBs with the same line are included.
        """
        if verb == b"MPUB":
            return self._whole_batch()
        size_max = self.max_msg_size if verb in _PUBLISHES else self.max_body_size
        data, position, unpack = self._data, self._position, _INT32.unpack_from
        bodies: list[bytes] = []
        for _ in range(_PUB_RUN_MAX):
            start = position + 4
            if start > len(data):
                break
            after = start + unpack(data, position)[0]
            if not start < after <= start + size_max or after > len(data):
                break
            bodies.append(data[start:after])
            self._position = after
            if verb != b"PUB" or not data.startswith(line, after):
                break
            position = after + len(line)
        return bodies

    def _whole_batch(self) -> Sequence[bytes]:
        data = self._data
        start = self._position + 8
        if start > len(data):
            return ()
        size, count = _TWO_INT32.unpack_from(data, self._position)  # a count out of range cannot be filled
        after = start - 4 + size
        if not 4 < size <= self.max_body_size or after > len(data):
            return ()
        bodies = split_batch(data, start, after, count, self.max_msg_size)
        if bodies is None:
            return ()
        self._position = after
        return bodies

    def _start(self, reader: Reader) -> None:
        self._reader = reader
        self._need = next(reader)

    def _resume(self) -> Command | None:
        """Send the reader the bytes that it needs while there are enough; then keep the rest."""
        assert self._reader is not None
        data, need = self._data, self._need
        try:
            while self._position + need.size <= len(data):
                start = self._position
                self._position = len(data) if need.or_more else start + need.size
                need = self._need = self._reader.send(data[start : self._position])
        except StopIteration as stop:
            self._reader = None
            self._need = Need(0)
            bodies, rest = stop.value
            self._position -= len(rest)
            return Command(self._verb, self._params, bodies) if self._verb else None
        self._keep(need.size - (len(data) - self._position))
        return None


def _split_line(line: bytes) -> tuple[bytes, list[bytes]]:
    verb, *params = line[: -2 if line.endswith(b"\r\n") else -1].split(b" ")
    if verb == b"FIN":
        del params[1:]  # further words are not ids
    return verb, params


def _read_magic() -> Reader:
    magic = yield Need(len(MAGIC_V2))
    if magic != MAGIC_V2:
        raise BadProtocol
    return Read(())


def _finish_run(data: bytes, position: int) -> list[bytes]:
    r"""Return the ids of the consecutive plain FINs at ``position``, where one begins.

    A FIN has 21 bytes, so a slice with that step finds the end of the run, and counts show that each line is a FIN.
    An unusual line (a ``\r``, a further word) gives an empty list and is decoded as any other line.
    """
    count = min((len(data) - position) // _FIN_LENGTH, _FIN_RUN_MAX)
    line_ends = data[position + _FIN_LENGTH - 1 : position + count * _FIN_LENGTH : _FIN_LENGTH]
    count = len(line_ends) - len(line_ends.lstrip(b"\n"))
    run = data[position : position + count * _FIN_LENGTH]
    ids = run[len(_FIN_PREFIX) : -1].split(b"\n" + _FIN_PREFIX)
    if len(ids) == count == run.count(b"\n") == run.count(b" ") and b"\r" not in run:
        return ids
    return []
