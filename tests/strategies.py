"""Hypothesis strategies for names, bodies, ids, commands, frames and byte streams.

They draw everything that NSQ allows. A ``Sample`` is an encoded value with its decoded form; ``chunkings`` divides
bytes into pieces as a socket may.
"""

from __future__ import annotations

import string
from itertools import pairwise

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from nsqkit import errors
from nsqkit.wire import commands as wire_commands
from nsqkit.wire import frames as wire_frames
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import ATTEMPTS_MAX, encode_message
from nsqkit.wire.names import EPHEMERAL_SUFFIX, NAME_LENGTH_MAX

NAME_ALPHABET = string.ascii_letters + string.digits + "._-"

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@attrs.frozen
class Sample:
    """Encoded bytes, and the value that they decode to."""

    data: bytes
    value: object


# ---- parts ------------------------------------------------------------------------------------------------------


@st.composite
def names(draw: st.DrawFn) -> bytes:
    """Draw a valid name of a topic or channel, sometimes an ephemeral one."""
    suffix = draw(st.sampled_from([b"", b"", EPHEMERAL_SUFFIX]))
    stem = st.text(NAME_ALPHABET, min_size=1, max_size=NAME_LENGTH_MAX - len(suffix))
    return draw(stem).encode() + suffix


def bodies(max_size: int = 64) -> SearchStrategy[bytes]:
    """Draw the body of a message: any bytes, but at least one."""
    return st.binary(min_size=1, max_size=max_size)


def batches(max_size: int = 12) -> SearchStrategy[list[bytes]]:
    """Draw the bodies of an MPUB, often all of one size."""
    equal = st.integers(1, 20).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1))
    return st.one_of(st.lists(bodies(20), min_size=1, max_size=max_size), equal)


def message_ids() -> SearchStrategy[bytes]:
    """Draw an id: 16 hex digits, or any 16 bytes that a command line can carry."""
    hexadecimal = st.integers(0, (1 << 64) - 1).map(lambda number: b"%016x" % number)
    odd = st.binary(min_size=16, max_size=16).filter(lambda word: not {10, 32} & {*word} and word[-1] != 13)
    return st.one_of(hexadecimal, odd)


def identify_requests() -> SearchStrategy[IdentifyRequest]:
    """Draw any request that IDENTIFY can carry, sensible or not."""
    text = st.text(max_size=10)
    by_type: dict[type, SearchStrategy[object]] = {str: text, bool: st.booleans(), int: INT64}
    fields = {field.name: by_type[type(field.default)] for field in attrs.fields(IdentifyRequest)}
    return st.builds(IdentifyRequest, **{**fields, "sample_rate": INT32})


# ---- commands ---------------------------------------------------------------------------------------------------


def int32(number: int) -> bytes:
    """Return a big-endian, signed 32-bit number."""
    return number.to_bytes(4, "big", signed=True)


def command(data: bytes, verb: bytes, *params: bytes, bodies: tuple[bytes, ...] = ()) -> Sample:
    """Return an encoded command with its verb, params and bodies."""
    return Sample(data, (verb, params, bodies))


def finishes() -> SearchStrategy[Sample]:
    """Draw a FIN."""
    return message_ids().map(lambda word: command(wire_commands.encode_finish(word), b"FIN", word))


def commands() -> SearchStrategy[Sample]:
    """Draw one command of any kind."""
    number = st.integers(0, (1 << 63) - 1)
    return st.one_of(
        st.just(command(wire_commands.NOP, b"NOP")),
        st.just(command(wire_commands.CLS, b"CLS")),
        finishes(),
        message_ids().map(lambda word: command(wire_commands.encode_touch(word), b"TOUCH", word)),
        st.builds(
            lambda word, delay_ms: command(
                wire_commands.encode_requeue(word, delay_ms), b"REQ", word, b"%d" % delay_ms
            ),
            message_ids(),
            number,
        ),
        number.map(lambda count: command(wire_commands.encode_ready(count), b"RDY", b"%d" % count)),
        st.builds(
            lambda topic, channel: command(wire_commands.encode_subscribe(topic, channel), b"SUB", topic, channel),
            names(),
            names(),
        ),
        commands_with_body(),
    )


def commands_with_body() -> SearchStrategy[Sample]:
    """Draw IDENTIFY, AUTH, PUB, DPUB or MPUB."""
    return st.one_of(
        bodies().map(lambda body: command(wire_commands.encode_identify(body), b"IDENTIFY", bodies=(body,))),
        bodies().map(lambda body: command(wire_commands.encode_auth(body), b"AUTH", bodies=(body,))),
        st.builds(
            lambda topic, body: command(wire_commands.encode_publish(topic, body), b"PUB", topic, bodies=(body,)),
            names(),
            bodies(),
        ),
        st.builds(
            lambda topic, body, delay_ms: command(
                wire_commands.encode_deferred_publish(topic, body, delay_ms),
                b"DPUB",
                topic,
                b"%d" % delay_ms,
                bodies=(body,),
            ),
            names(),
            bodies(),
            st.integers(0, 3_600_000),
        ),
        st.builds(
            lambda topic, batch: command(
                wire_commands.encode_multi_publish(topic, batch), b"MPUB", topic, bodies=tuple(batch)
            ),
            names(),
            batches(),
        ),
    )


def conversations() -> SearchStrategy[list[Sample]]:
    """Draw the commands of a client after the magic, often with runs of FINs."""
    rows = st.one_of(commands().map(lambda sample: [sample]), st.lists(finishes(), min_size=1, max_size=8))
    return st.lists(rows, max_size=10).map(lambda found: [sample for row in found for sample in row])


# ---- frames -----------------------------------------------------------------------------------------------------


def broker_errors() -> SearchStrategy[errors.BrokerError]:
    """Draw an error of any code with any decoded description."""
    description = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
    return st.builds(lambda cls, text: cls(text), st.sampled_from(errors.BrokerError.__subclasses__()), description)


def message_frames(body: SearchStrategy[bytes] | None = None) -> SearchStrategy[Sample]:
    """Draw a message frame; its body may be empty."""
    return st.builds(
        lambda *parts: Sample(encode_message(*parts), wire_frames.MessageFrame(*parts)),
        INT64,
        st.integers(0, ATTEMPTS_MAX),
        st.binary(min_size=16, max_size=16),
        st.binary(max_size=64) if body is None else body,
    )


def frames() -> SearchStrategy[Sample]:
    """Draw a frame of any kind; an error's value is its class and description."""
    return st.one_of(
        st.binary(max_size=64).map(
            lambda payload: Sample(wire_frames.encode_response(payload), wire_frames.Response(payload))
        ),
        broker_errors().map(lambda error: Sample(wire_frames.encode_error(error), (type(error), error.description))),
        message_frames(),
    )


def messages_of_one_size() -> SearchStrategy[list[Sample]]:
    """Draw a run of message frames with bodies of one size."""
    return st.integers(0, 5).flatmap(
        lambda size: st.lists(message_frames(st.binary(min_size=size, max_size=size)), min_size=2, max_size=5)
    )


def deliveries() -> SearchStrategy[list[Sample]]:
    """Draw the frames of a broker: any kind, and runs of messages of one size."""
    rows = st.one_of(frames().map(lambda sample: [sample]), messages_of_one_size())
    return st.lists(rows, max_size=8).map(lambda found: [sample for row in found for sample in row])


# ---- streams ----------------------------------------------------------------------------------------------------


def single_bytes(data: bytes) -> list[bytes]:
    """Divide ``data`` into single bytes."""
    return [data[i : i + 1] for i in range(len(data))]


def chunkings(data: bytes) -> SearchStrategy[list[bytes]]:
    """Divide ``data`` at any places; pieces may be empty."""

    def cut(places: list[int]) -> list[bytes]:
        edges = [0, *sorted(places), len(data)]
        return [data[start:end] for start, end in pairwise(edges)]

    cuts = st.lists(st.integers(0, len(data)), max_size=12).map(cut)
    return st.one_of(cuts, st.just(single_bytes(data)))


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Change, insert or delete something in ``data``."""
    place = draw(st.integers(0, len(data)))
    length = draw(st.integers(0, 6))
    return data[:place] + draw(st.binary(max_size=6)) + data[place + length :]


def wild_commands() -> SearchStrategy[bytes]:
    """Draw lines with numbers and bodies that need not fit together."""
    number = st.one_of(st.integers(-3, 70), INT32).map(lambda n: n.to_bytes(4, "big", signed=True))
    line = st.builds(
        lambda verb, words, end: b" ".join([verb, *words]) + end,
        st.sampled_from([b"IDENTIFY", b"AUTH", b"PUB", b"DPUB", b"MPUB", b"MPUB", b"FIN", b"RDY", b""]),
        st.lists(st.sampled_from([b"t", b"", b"x" * 16, b"y\r" * 8]), max_size=2),
        st.sampled_from([b"\n", b"\n", b"\r\n"]),
    )
    piece = st.one_of(line, number, bodies(), commands().map(lambda sample: sample.data))
    return st.lists(piece, max_size=12).map(b"".join)
