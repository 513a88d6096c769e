"""The decoder is compared with ``nsqd_reads``, a simple model of nsqd."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from functools import partial
from io import BytesIO
from typing import TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqkit.errors import BadTopic, BrokerError, InvalidCommand, ProtocolError
from nsqkit.wire import commands
from nsqkit.wire.bodies import batch_count_max
from nsqkit.wire.commands import (
    CLS,
    LINE_LENGTH_MAX,
    MAGIC_V2,
    MPUB_HEAD,
    NOP,
    Command,
    CommandDecoder,
    milliseconds_ns,
    parse_number,
)
from tests import strategies
from tests.rules import AllowAll, CheckWith
from tests.strategies import Sample, int32

MAX_MSG_SIZE = 50
MAX_BODY_SIZE = 150

ID = b"0123456789abcdef"

Decoded: TypeAlias = tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]]
"""Verb, params and bodies of one command; of a run of FINs or PUBs each is one."""

Outcome: TypeAlias = tuple[list[Decoded], str | None]
"""All commands of a stream, and its end: the error to answer, "closed" without an answer, or None."""


def new_decoder(max_msg_size: int = MAX_MSG_SIZE, max_body_size: int = MAX_BODY_SIZE) -> CommandDecoder:
    return CommandDecoder(AllowAll(), max_msg_size=max_msg_size, max_body_size=max_body_size)


def after_magic() -> CommandDecoder:
    decoder = new_decoder()
    assert list(decoder.feed(MAGIC_V2)) == []
    return decoder


def apart(command: Command) -> list[Decoded]:
    if command.verb == b"FIN" and command.params:
        return [(b"FIN", (message_id,), ()) for message_id in command.params]
    if command.verb == b"PUB":
        return [(b"PUB", tuple(command.params), (body,)) for body in command.bodies]
    return [(command.verb, tuple(command.params), tuple(command.bodies))]


def decode(pieces: Iterable[bytes], decoder: CommandDecoder | None = None) -> Outcome:
    decoder = decoder or new_decoder()
    decoded: list[Decoded] = []
    try:
        for piece in pieces:
            for command in decoder.feed(piece):
                decoded += [] if command.verb == MPUB_HEAD else apart(command)
    except BrokerError as error:
        return decoded, str(error)
    except ProtocolError:
        return decoded, "closed"
    cut_off = decoder.end()
    return decoded, None if cut_off is None else str(cut_off)


# ---- the model --------------------------------------------------------------------------------------------------


class Answered(Exception):
    """nsqd would send this text in an error frame and close the connection."""


def nsqd_reads(data: bytes) -> Outcome:
    stream = BytesIO(data)
    decoded: list[Decoded] = []
    magic = stream.read(4)
    if magic != b"  V2":
        return decoded, "E_BAD_PROTOCOL" if len(magic) == 4 else None
    try:
        while (line := stream.readline(16384)).endswith(b"\n"):
            decoded.append(nsqd_executes(line[:-1].removesuffix(b"\r"), stream))
    except Answered as answer:
        return decoded, str(answer)
    return decoded, "closed" if len(line) == 16384 else None


def nsqd_executes(line: bytes, stream: BytesIO) -> Decoded:
    verb, *params = line.split(b" ")
    name = verb.decode("ascii", "replace")
    bodies: list[bytes] = []
    if verb in (b"IDENTIFY", b"AUTH"):
        size = nsqd_reads_size(stream, f"E_BAD_BODY {name} failed to read body size")
        if size > MAX_BODY_SIZE:
            raise Answered(f"E_BAD_BODY {name} body too big {size} > {MAX_BODY_SIZE}")
        if size <= 0:
            raise Answered(f"E_BAD_BODY {name} invalid body size {size}")
        bodies = [nsqd_reads_full(stream, size, f"E_BAD_BODY {name} failed to read body")]
    elif verb in (b"PUB", b"DPUB"):
        size = nsqd_reads_size(stream, f"E_BAD_MESSAGE {name} failed to read message body size")
        if size <= 0:
            raise Answered(f"E_BAD_MESSAGE {name} invalid message body size {size}")
        if size > MAX_MSG_SIZE:
            raise Answered(f"E_BAD_MESSAGE {name} message too big {size} > {MAX_MSG_SIZE}")
        bodies = [nsqd_reads_full(stream, size, f"E_BAD_MESSAGE {name} failed to read message body")]
    elif verb == b"MPUB":
        bodies = nsqd_reads_batch(stream)
    return verb, tuple(params[:1] if verb == b"FIN" else params), tuple(bodies)


def nsqd_reads_batch(stream: BytesIO) -> list[bytes]:
    size = nsqd_reads_size(stream, "E_BAD_BODY MPUB failed to read body size")
    if size <= 0:
        raise Answered(f"E_BAD_BODY MPUB invalid body size {size}")
    if size > MAX_BODY_SIZE:
        raise Answered(f"E_BAD_BODY MPUB body too big {size} > {MAX_BODY_SIZE}")
    count = nsqd_reads_size(stream, "E_BAD_BODY MPUB failed to read message count")
    if count <= 0 or count > (MAX_BODY_SIZE - 4) // 5:
        raise Answered(f"E_BAD_BODY MPUB invalid message count {count}")
    bodies: list[bytes] = []
    for n in range(count):
        size = nsqd_reads_size(stream, f"E_BAD_MESSAGE MPUB failed to read message({n}) body size")
        if size <= 0:
            raise Answered(f"E_BAD_MESSAGE MPUB invalid message({n}) body size {size}")
        if size > MAX_MSG_SIZE:
            raise Answered(f"E_BAD_MESSAGE MPUB message too big {size} > {MAX_MSG_SIZE}")
        # nsqd does not have this limit.
        total = 4 + sum(4 + len(body) for body in bodies) + 4 + size
        if total > MAX_BODY_SIZE:
            raise Answered(f"E_BAD_BODY MPUB body too big {total} > {MAX_BODY_SIZE}")
        bodies.append(nsqd_reads_full(stream, size, "E_BAD_MESSAGE MPUB failed to read message body"))
    return bodies


def nsqd_reads_size(stream: BytesIO, otherwise: str) -> int:
    return int.from_bytes(nsqd_reads_full(stream, 4, otherwise), "big", signed=True)


def nsqd_reads_full(stream: BytesIO, size: int, otherwise: str) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise Answered(otherwise)
    return data


# ---- encode -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "encoded"),
    [
        (commands.encode_identify(b"{}"), b"IDENTIFY\n\0\0\0\x02{}"),
        (commands.encode_auth(b"secret"), b"AUTH\n\0\0\0\x06secret"),
        (commands.encode_subscribe(b"t", b"c"), b"SUB t c\n"),
        (commands.encode_ready(2500), b"RDY 2500\n"),
        (commands.encode_finish(ID), b"FIN 0123456789abcdef\n"),
        (commands.encode_finishes([ID, b"f" * 16]), b"FIN 0123456789abcdef\nFIN ffffffffffffffff\n"),
        (commands.encode_requeue(ID, 90_000), b"REQ 0123456789abcdef 90000\n"),
        (commands.encode_touch(ID), b"TOUCH 0123456789abcdef\n"),
        (commands.encode_publish(b"t", b"hi"), b"PUB t\n\0\0\0\x02hi"),
        (commands.encode_deferred_publish(b"t", b"hi", 250), b"DPUB t 250\n\0\0\0\x02hi"),
        (
            commands.encode_multi_publish(b"t", [b"one", b"three"]),
            b"MPUB t\n\0\0\0\x14\0\0\0\x02\0\0\0\x03one\0\0\0\x05three",
        ),
        (NOP, b"NOP\n"),
        (CLS, b"CLS\n"),
    ],
)
def test_commands_are_encoded_byte_by_byte(data: bytes, encoded: bytes) -> None:
    assert data == encoded


@given(strategies.commands())
def test_encoded_command_is_decoded_to_itself(sample: Sample) -> None:
    assert decode([MAGIC_V2 + sample.data], new_decoder(1 << 20, 5 << 20)) == ([sample.value], None)


# ---- decode: as nsqd, wherever reads end ------------------------------------------------------------------------


@given(st.data(), strategies.conversations())
def test_commands_do_not_depend_on_the_pieces(data: st.DataObject, samples: list[Sample]) -> None:
    stream = MAGIC_V2 + b"".join(sample.data for sample in samples)
    decoded = decode(data.draw(strategies.chunkings(stream)), new_decoder(1 << 20, 5 << 20))
    assert decoded == ([sample.value for sample in samples], None)


@given(st.data(), strategies.wild_commands())
def test_almost_valid_commands_are_decoded_as_by_nsqd(data: st.DataObject, stream: bytes) -> None:
    stream = MAGIC_V2 + stream
    assert decode([stream]) == nsqd_reads(stream)
    assert decode(data.draw(strategies.chunkings(stream))) == nsqd_reads(stream)


@given(st.data(), strategies.conversations())
def test_damaged_stream_is_decoded_as_by_nsqd(data: st.DataObject, samples: list[Sample]) -> None:
    stream = data.draw(strategies.damaged(MAGIC_V2 + b"".join(sample.data for sample in samples)))
    assert decode([stream]) == nsqd_reads(stream)
    assert decode(data.draw(strategies.chunkings(stream))) == nsqd_reads(stream)


@given(st.data(), st.binary(max_size=100))
def test_garbage_is_decoded_as_by_nsqd(data: st.DataObject, stream: bytes) -> None:
    for begun in (stream, MAGIC_V2 + stream):
        assert decode(data.draw(strategies.chunkings(begun))) == nsqd_reads(begun)


FIN = commands.encode_finish(ID)


@pytest.mark.parametrize(
    "odd",
    [
        FIN * 600,
        b"FIN " + ID + b" and more words\n",
        b"FIN 0123456789abcde\r\n",
        b"FIN " + ID + b"\r\n",
        b"FIN 0123456789\rbcdef\n",
        b"FIN 0123456 89abcdef\n",
        b"FIN 01234\nNOP abcdef\n",
        b"FIN 01234\nFIN 012345\n",
        b"FIN 01234\nabcdefghij\n",
        b"FIN 0123456789abcde\nX",
        b"FIN \n",
        b"FIN\n",
        b"fin 0123456789abcdef\n",
        b"TOUC 123456789abcdef\n",
    ],
    ids=lambda odd: repr(odd[:30]),
)
@pytest.mark.parametrize("cut", [None, -1])
def test_runs_of_finishes_with_an_unusual_line(odd: bytes, cut: int | None) -> None:
    stream = (MAGIC_V2 + FIN + odd + FIN)[:cut]
    decoded = nsqd_reads(stream)
    assert decode([MAGIC_V2, stream[4:]]) == decoded
    assert decode(strategies.single_bytes(stream)) == decoded


def test_run_of_finishes_is_one_command() -> None:
    runs = [len(command.params) for command in after_magic().feed(FIN * 600 + NOP + FIN)]
    assert runs == [*[100] * 6, 0, 1]


@pytest.mark.parametrize(
    ("stream", "ending"),
    [
        (b"", None),
        (b"  V", None),
        (b"  V9", "E_BAD_PROTOCOL"),
        (b"GET / HTTP/1.0\r\n\r\n", "E_BAD_PROTOCOL"),
    ],
)
def test_stream_begins_with_the_magic(stream: bytes, ending: str | None) -> None:
    assert decode([stream]) == decode(strategies.single_bytes(stream)) == ([], ending)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("line", [b"NOP", b"NOP extra words", b"", b" PUB t", b"RDY ", b"\ra", b"\0\xff\t"])
def test_line_is_split_at_each_space(line: bytes, end: bytes) -> None:
    verb, *params = line.split(b" ")
    assert decode([MAGIC_V2 + line + end]) == ([(verb, tuple(params), ())], None)


def test_one_carriage_return_is_removed_from_the_end_of_a_line() -> None:
    assert decode([MAGIC_V2 + b"NOP a\r\r\n"]) == ([(b"NOP", (b"a\r",), ())], None)


@pytest.mark.parametrize("before", [b"", NOP])
@pytest.mark.parametrize(
    ("length", "line_end", "ending"),
    [
        (LINE_LENGTH_MAX, b"\n", None),
        (LINE_LENGTH_MAX, b"\r\n", None),
        (LINE_LENGTH_MAX + 1, b"\n", "closed"),
        (LINE_LENGTH_MAX, b"", "closed"),
        (LINE_LENGTH_MAX - 1, b"", None),
        (5 * LINE_LENGTH_MAX, b"", "closed"),
    ],
)
def test_line_as_long_as_the_read_buffer_of_nsqd_is_accepted(
    length: int, line_end: bytes, ending: str | None, before: bytes
) -> None:
    line = b"NOP ".ljust(length - len(line_end), b"a") + line_end
    whole = decode([MAGIC_V2 + before + line])
    assert whole == nsqd_reads(MAGIC_V2 + before + line)
    assert whole[1] == ending
    assert decode([MAGIC_V2 + before, line[:16000], line[16000:16383], line[16383:16384], line[16384:]]) == whole


def test_line_without_an_end_is_refused_with_the_limit() -> None:
    with pytest.raises(ProtocolError, match="a command line is longer than 16384 bytes"):
        list(after_magic().feed(b"PUB " + b"a" * 20_000))


REFUSED = [
    (b"IDENTIFY\n" + int32(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n" + int32(-1), "E_BAD_BODY IDENTIFY invalid body size -1"),
    (b"IDENTIFY a b\n" + int32(151), "E_BAD_BODY IDENTIFY body too big 151 > 150"),
    (b"AUTH\n" + int32(0), "E_BAD_BODY AUTH invalid body size 0"),
    (b"AUTH\n" + int32(151), "E_BAD_BODY AUTH body too big 151 > 150"),
    (b"PUB t\n" + int32(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n" + int32(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"PUB t\n" + int32(51), "E_BAD_MESSAGE PUB message too big 51 > 50"),
    (b"DPUB t 1\n" + int32(-5), "E_BAD_MESSAGE DPUB invalid message body size -5"),
    (b"DPUB t 1\n" + int32(51), "E_BAD_MESSAGE DPUB message too big 51 > 50"),
    (b"MPUB t\n" + int32(0), "E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB t\n" + int32(-7), "E_BAD_BODY MPUB invalid body size -7"),
    (b"MPUB t\n" + int32(151), "E_BAD_BODY MPUB body too big 151 > 150"),
    (commands.encode_multi_publish(b"t", [b"x" * 50] * 3), "E_BAD_BODY MPUB body too big 166 > 150"),
    (b"MPUB t\n" + int32(100) + int32(0), "E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB t\n" + int32(100) + int32(-1), "E_BAD_BODY MPUB invalid message count -1"),
    (
        b"MPUB t\n" + int32(100) + int32(30),
        "E_BAD_BODY MPUB invalid message count 30",
    ),  # (150 - 4) // 5 is 29
    (
        b"MPUB t\n" + int32(100) + int32(2) + int32(2) + b"aa" + int32(0),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    (
        b"MPUB t\n" + int32(100) + int32(1) + int32(-3),
        "E_BAD_MESSAGE MPUB invalid message(0) body size -3",
    ),
    (b"MPUB t\n" + int32(100) + int32(1) + int32(51), "E_BAD_MESSAGE MPUB message too big 51 > 50"),
    (
        b"MPUB t\n" + int32(20) + int32(3) + 3 * (int32(50) + b"x" * 50),
        "E_BAD_BODY MPUB body too big 166 > 150",
    ),
]


@pytest.mark.parametrize(("stream", "error"), REFUSED, ids=lambda value: repr(value)[:60])
@pytest.mark.parametrize("after", [b"", b"x" * 300])
def test_number_is_refused_as_soon_as_it_has_come(stream: bytes, error: str, after: bytes) -> None:
    assert decode([MAGIC_V2 + stream + after]) == ([], error)
    assert decode(strategies.single_bytes(MAGIC_V2 + stream)) == ([], error)


CUT_OFF = [
    (b"PUB t", None),
    (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n" + int32(100), "E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n\0", "E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n" + int32(9) + b"secret", "E_BAD_BODY AUTH failed to read body"),
    (b"PUB t\n\0\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n" + int32(10) + b"half", "E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 1\n", "E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 1\n" + int32(10), "E_BAD_MESSAGE DPUB failed to read message body"),
    (b"MPUB t\n\0", "E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n" + int32(100) + b"\0", "E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n" + int32(100) + int32(2), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (
        b"MPUB t\n" + int32(100) + int32(2) + int32(1) + b"x\0",
        "E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    (
        b"MPUB t\n" + int32(100) + int32(1) + int32(5) + b"xx",
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
]


@pytest.mark.parametrize(("stream", "error"), CUT_OFF, ids=lambda value: repr(value)[:60])
def test_end_of_the_stream_within_a_body_is_an_error(stream: bytes, error: str | None) -> None:
    assert decode([MAGIC_V2 + stream]) == ([], error)
    assert decode(strategies.single_bytes(MAGIC_V2 + stream)) == ([], error)


def test_end_of_the_stream_between_commands_is_not_an_error() -> None:
    decoder = after_magic()
    for piece in strategies.single_bytes(commands.encode_multi_publish(b"t", [b"one", b"three"])):
        list(decoder.feed(piece))
    assert decoder.end() is None


def test_sizes_of_messages_in_a_batch_take_precedence() -> None:
    batch = int32(2) + int32(3) + b"one" + int32(5) + b"three"
    expected = [(b"MPUB", (b"t",), (b"one", b"three")), (b"NOP", (), ())]
    for announced in (1, len(batch) - 1, len(batch), len(batch) + len(NOP), 150):
        stream = MAGIC_V2 + b"MPUB t\n" + int32(announced) + batch + NOP
        assert decode([stream]) == decode(strategies.single_bytes(stream)) == (expected, None)


# ---- decode: the caller's part ----------------------------------------------------------------------------------


@given(st.data(), strategies.conversations())
def test_rules_are_checked_after_the_command_before_was_executed(data: st.DataObject, samples: list[Sample]) -> None:
    log: list[tuple[str, list[bytes]]] = []

    def note(step: str, verb: bytes, params: list[bytes]) -> None:
        log.append((step, [verb, *params]))

    decoder = CommandDecoder(CheckWith(partial(note, "check")), max_msg_size=1 << 20, max_body_size=5 << 20)
    stream = MAGIC_V2 + b"".join(sample.data for sample in samples)
    for piece in data.draw(strategies.chunkings(stream)):
        for command in decoder.feed(piece):
            if command.verb != MPUB_HEAD:
                note("execute", command.verb, command.params)
    assert [step for step, _ in log] == ["check", "execute"] * (len(log) // 2)
    assert [words for _, words in log[0::2]] == [words for _, words in log[1::2]]


def test_rules_see_a_finish_without_its_further_words() -> None:
    checked: list[list[bytes]] = []
    rules = CheckWith(lambda verb, params: checked.append(params))
    decoder = CommandDecoder(rules, max_msg_size=1, max_body_size=1)
    list(decoder.feed(MAGIC_V2 + FIN * 2 + b"FIN short and more\nFIN\n"))
    assert checked == [[ID, ID], [b"short"], []]


@pytest.mark.parametrize("line", [b"PUB a$b\n", b"MPUB a$b\n", FIN * 2, b"NOP\n"])
@pytest.mark.parametrize("error", [BadTopic("not valid"), InvalidCommand("not now")], ids=repr)
def test_refusal_precedes_the_body(line: bytes, error: BrokerError) -> None:
    def refuse(verb: bytes, params: Sequence[bytes]) -> None:
        if verb != b"RDY":
            raise error

    decoder = CommandDecoder(CheckWith(refuse), max_msg_size=9, max_body_size=9)
    assert decode([MAGIC_V2 + b"RDY 1\n" + line], decoder) == ([(b"RDY", (b"1",), ())], str(error))


@pytest.mark.parametrize("pieces", [[b"abc", b"def"], [b"abcdef"], [b"", b"abcdef"]])
def test_take_rest_returns_the_bytes_after_a_command(pieces: list[bytes]) -> None:
    decoder = after_magic()
    feed = decoder.feed(commands.encode_identify(b"{}") + pieces[0])
    assert list(next(feed).bodies) == [b"{}"]
    assert decoder.take_rest() == pieces[0]
    assert list(feed) == []
    for plain in (NOP, FIN):
        assert [command.verb for command in decoder.feed(plain)] == [plain[:3]]


def test_rest_may_be_fed_before_the_first_feed_continues() -> None:
    decoder = after_magic()
    body = b"x" * 30
    publish = commands.encode_publish(b"t", body)
    feed = decoder.feed(commands.encode_identify(b"{}") + publish[:-5])
    next(feed)
    rest = decoder.take_rest()
    assert list(decoder.feed(rest[:12])) == []
    assert list(decoder.feed(rest[12:])) == []
    assert list(feed) == []
    assert [apart(command) for command in decoder.feed(publish[-5:])] == [[(b"PUB", (b"t",), (body,))]]


BATCH = commands.encode_multi_publish(b"t", [b"one"])


@pytest.mark.parametrize(
    ("pieces", "verbs"),
    [
        ([BATCH], [b"MPUB"]),
        ([BATCH + BATCH[:7], BATCH[7:]], [b"MPUB", MPUB_HEAD, b"MPUB"]),
        ([BATCH[:6], BATCH[6:7], BATCH[7:9], BATCH[9:]], [MPUB_HEAD, b"MPUB"]),
        ([BATCH[:6], BATCH[6:] + BATCH], [b"MPUB", b"MPUB"]),
    ],
)
def test_mpub_head_precedes_a_body_that_has_not_come(pieces: list[bytes], verbs: list[bytes]) -> None:
    decoder = after_magic()
    found = [command for piece in pieces for command in decoder.feed(piece)]
    assert [command.verb for command in found] == verbs
    assert all(command.params == [b"t"] for command in found)
    assert all(list(command.bodies) == [b"one"] for command in found if command.verb == b"MPUB")


def test_mpub_head_precedes_the_refusal_of_a_wrong_body() -> None:
    feed = after_magic().feed(b"MPUB t\n" + int32(0))
    assert next(feed).verb == MPUB_HEAD
    with pytest.raises(BrokerError, match="invalid body size 0"):
        next(feed)


def test_consecutive_publishes_to_one_topic_are_one_command() -> None:
    stream = b"".join(
        commands.encode_publish(topic, body) for topic, body in [(b"t", b"1"), (b"t", b"2"), (b"u", b"3")]
    )
    assert [(command.params, list(command.bodies)) for command in after_magic().feed(stream)] == [
        ([b"t"], [b"1", b"2"]),
        ([b"u"], [b"3"]),
    ]


ONE = commands.encode_publish(b"t", b"one")
NESTED = commands.encode_publish(b"t", ONE)
READS = [
    (ONE,),
    (commands.encode_publish(b"t", b"two"),),
    (commands.encode_publish(b"u", b"one"),),
    (commands.encode_publish(b"t", b"four"),),
    (NESTED[: -len(ONE)], ONE),
    (NESTED[: -len(ONE) - 1], NESTED[-len(ONE) - 1 :]),
    (ONE + ONE,),
    (ONE[:4], ONE[4:]),
    (commands.encode_multi_publish(b"t", [b"one"]),),
    (NOP,),
]
"""Commands, each as the reads in which it comes; a body may look like the PUB that was a separate read."""


@given(st.lists(st.sampled_from(READS), max_size=8))
def test_buffers_like_the_one_before_are_decoded_as_by_nsqd(
    commands_in_reads: list[tuple[bytes, ...]],
) -> None:
    reads = [MAGIC_V2, *(read for command in commands_in_reads for read in command)]
    assert decode(reads) == nsqd_reads(b"".join(reads))


@pytest.mark.parametrize("read", [ONE, FIN, FIN * 3, b"NOP\n"], ids=repr)
def test_rules_are_checked_once_for_a_repeated_read_in_one_state(read: bytes) -> None:
    class Counting(AllowAll):
        state: object = "first"
        count = 0

        def check(self, verb: bytes, params: list[bytes]) -> None:
            self.count += 1

    rules = Counting()
    decoder = CommandDecoder(rules, max_msg_size=9, max_body_size=9)
    decode([MAGIC_V2, *[read] * 3], decoder)
    assert rules.count == 1
    rules.state = "second"
    decode([read] * 3, decoder)
    assert rules.count == 2


def test_rules_are_checked_again_for_a_repeated_publish() -> None:
    def check(verb: bytes, params: Sequence[bytes]) -> None:
        if refused:
            raise refused[0]

    refused: list[BrokerError] = []
    decoder = CommandDecoder(CheckWith(check), max_msg_size=9, max_body_size=9)
    assert decode([MAGIC_V2, ONE, ONE], decoder) == ([(b"PUB", (b"t",), (b"one",))] * 2, None)
    refused.append(InvalidCommand("not now"))
    assert decode([ONE], decoder) == ([], "E_INVALID not now")


def test_take_rest_joins_pieces() -> None:
    decoder = after_magic()
    for piece in (b"PUB t\n", int32(10) + b"one", b"two", b"thr"):
        assert list(decoder.feed(piece)) == []
    assert decoder.take_rest() == b"onetwothr"


def test_body_in_small_pieces_takes_little_more_memory() -> None:
    body = b"xy" * 50_000
    stream = commands.encode_publish(b"t", body)
    decoder = CommandDecoder(AllowAll(), max_msg_size=len(body), max_body_size=9)
    list(decoder.feed(MAGIC_V2))
    tracemalloc.start()
    try:
        for i in range(0, len(stream) - 2, 2):
            assert list(decoder.feed(stream[i : i + 2])) == []
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(body)
    assert peak < 4 * len(body)
    assert [apart(command) for command in decoder.feed(stream[-2:])] == [[(b"PUB", (b"t",), (body,))]]


# ---- parts ------------------------------------------------------------------------------------------------------


def go_number(word: bytes) -> int:
    """Return the signed 64-bit number of digits, with overflow."""
    number = 0
    for digit in word:
        number = (number * 10 + digit - 48) & 0xFFFFFFFFFFFFFFFF
    return number - (1 << 64) if number >> 63 else number


@given(st.one_of(st.integers(0, 1 << 70).map(lambda n: b"%d" % n), st.from_regex(rb"\A[0-9]{0,200}\Z")))
@example(b"")
@example(b"18446744073709551615")
@example(b"9223372036854775808")
@example(b"0" * 9000 + b"7")
@example(b"1234567890" * 1000)
def test_number_wraps_as_in_nsqd(word: bytes) -> None:
    assert parse_number(word) == go_number(word)


@pytest.mark.parametrize("word", [b"+1", b"-1", b"1.5", b"0x10", b"1 ", b"1_0", b"x", "\u0661".encode(), b"\xb2"])
def test_number_with_other_characters_than_digits_is_refused(word: bytes) -> None:
    with pytest.raises(ValueError, match=r"b[\"']"):
        parse_number(word)


@pytest.mark.parametrize(
    ("milliseconds", "ns"),
    [
        (0, 0),
        (1500, 1_500_000_000),
        (-1, -1_000_000),
        (2**63 - 1, -1_000_000),
        (9_223_372_036_854, 9_223_372_036_854_000_000),
        (9_223_372_036_855, -9_223_372_036_854_551_616),
    ],
)
def test_milliseconds_wrap_as_in_nsqd(milliseconds: int, ns: int) -> None:
    assert milliseconds_ns(milliseconds) == ns


def test_batch_of_the_highest_count_is_decoded() -> None:
    batch = [b"x"] * 28 + [b"xy"]
    assert 4 + sum(4 + len(body) for body in batch) == MAX_BODY_SIZE
    assert len(batch) == batch_count_max(MAX_BODY_SIZE)
    stream = MAGIC_V2 + commands.encode_multi_publish(b"t", batch)
    expected = ([(b"MPUB", (b"t",), tuple(batch))], None)
    assert decode([stream]) == decode(strategies.single_bytes(stream)) == expected


def test_text_of_a_command_has_no_secret() -> None:
    assert repr(Command(b"AUTH", [], (b"hush",))) == "Command(verb=b'AUTH', params=[], bodies=…)"
    assert repr(Command(b"PUB", [b"t"], (b"m",))) == "Command(verb=b'PUB', params=[b't'], bodies=(b'm',))"
