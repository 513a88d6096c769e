from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadBody, BadProtocol, BrokerError, InvalidCommand, ProtocolError
from nsqkit.wire.lookup import (
    BODY_LENGTH_MAX,
    LINE_LENGTH_MAX,
    MAGIC_V1,
    OK_ANSWER,
    PING,
    AnswerDecoder,
    LookupCommand,
    LookupCommandDecoder,
    LookupdInfo,
    Node,
    decode_info,
    decode_node,
    encode_answer,
    encode_identify,
    encode_info,
    encode_register,
    encode_unregister,
)
from tests import strategies
from tests.rules import AllowAll, CheckWith

NODE = Node(broadcast_address="b", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")
DOCUMENT = (
    b'{"broadcast_address":"b","hostname":"h","http_port":4151,"tcp_port":4150,'
    b'"topology_region":"","topology_zone":"","version":"1.3.0"}'
)
PORTS = st.integers(1, 65535)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)

nodes = st.builds(
    Node,
    broadcast_address=WORDS,
    hostname=st.text(max_size=20),
    tcp_port=PORTS,
    http_port=PORTS,
    version=WORDS,
    topology_zone=st.text(max_size=5),
    topology_region=st.text(max_size=5),
)


def after_magic(check: Callable[[bytes, list[bytes]], object] | None = None) -> LookupCommandDecoder:
    decoder = LookupCommandDecoder(AllowAll() if check is None else CheckWith(check))
    assert list(decoder.feed(MAGIC_V1)) == []
    return decoder


def decode(pieces: Iterable[bytes]) -> list[object]:
    """Decode all pieces; the last item is the class and text of an error."""
    decoder = LookupCommandDecoder(AllowAll())
    found: list[object] = []
    try:
        for piece in pieces:
            found.extend(decoder.feed(piece))
    except (BrokerError, ProtocolError) as error:
        found.append((type(error), str(error)))
    return found


# ---- commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode_register(b"t"), b"REGISTER t\n"),
        (encode_register(b"t", b"c"), b"REGISTER t c\n"),
        (encode_unregister(b"t"), b"UNREGISTER t\n"),
        (encode_unregister(b"t", b"c"), b"UNREGISTER t c\n"),
        (PING, b"PING\n"),
        (encode_identify(NODE), b"IDENTIFY\n" + pack(">i", len(DOCUMENT)) + DOCUMENT),
        (OK_ANSWER, b"\0\0\0\x02OK"),
        (encode_answer(b""), b"\0\0\0\0"),
    ],
)
def test_commands_are_encoded_byte_by_byte(data: bytes, expected: bytes) -> None:
    assert data == expected


@given(nodes)
def test_encoded_node_is_decoded_to_itself(node: Node) -> None:
    (command,) = after_magic().feed(encode_identify(node))
    assert (command.verb, command.params, decode_node(command.body)) == (b"IDENTIFY", [], node)


topics = strategies.names()
samples = st.one_of(
    st.just((PING, LookupCommand(b"PING", []))),
    topics.map(lambda t: (encode_register(t), LookupCommand(b"REGISTER", [t]))),
    st.tuples(topics, topics).map(lambda n: (encode_register(*n), LookupCommand(b"REGISTER", [*n]))),
    st.tuples(topics, topics).map(lambda n: (encode_unregister(*n), LookupCommand(b"UNREGISTER", [*n]))),
    st.binary(max_size=40).map(
        lambda body: (b"IDENTIFY x\n" + encode_answer(body), LookupCommand(b"IDENTIFY", [b"x"], body))
    ),
)


@given(st.data(), st.lists(samples, max_size=8))
def test_commands_do_not_depend_on_the_pieces(
    data: st.DataObject, conversation: list[tuple[bytes, LookupCommand]]
) -> None:
    stream = MAGIC_V1 + b"".join(encoded for encoded, _ in conversation)
    expected = [command for _, command in conversation]
    assert decode(data.draw(strategies.chunkings(stream))) == expected


@given(st.data(), st.lists(samples, max_size=6))
def test_damaged_stream_does_not_depend_on_the_pieces(
    data: st.DataObject, conversation: list[tuple[bytes, LookupCommand]]
) -> None:
    whole = MAGIC_V1 + b"".join(encoded for encoded, _ in conversation)
    stream = data.draw(strategies.damaged(whole))
    assert decode(data.draw(strategies.chunkings(stream))) == decode([stream])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b" \t PING \v\f\n", [b"PING"]),
        (b"\xc2\xa0PING\xe3\x80\x80\n", [b"PING"]),
        (b"\x85PING\xa0\n", [b"\x85PING\xa0"]),
        (b"\x1cPING\x1f\n", [b"\x1cPING\x1f"]),
        (b"\n", [b""]),
        (b"REGISTER  t\n", [b"REGISTER", b"", b"t"]),
        (b"REGISTER t c d\n", [b"REGISTER", b"t", b"c", b"d"]),
        (b"REGISTER\tt\n", [b"REGISTER\tt"]),
        (b"register t\n", [b"register", b"t"]),
        (b"\xff\xfe t\n", [b"\xff\xfe", b"t"]),
    ],
)
def test_words_of_a_line(line: bytes, words: list[bytes]) -> None:
    assert list(after_magic().feed(line)) == [LookupCommand(words[0], words[1:])]


@pytest.mark.parametrize("magic", [b"  V2", b"PING\n", b"V1  "])
def test_wrong_magic_is_refused(magic: bytes) -> None:
    with pytest.raises(BadProtocol):
        list(LookupCommandDecoder(AllowAll()).feed(magic))


def test_refusal_precedes_the_body() -> None:
    def check(verb: bytes, params: list[bytes]) -> None:
        if verb != b"PING":
            raise InvalidCommand("no")

    found = after_magic(check).feed(b"PING\nIDENTIFY\n")
    assert next(found).verb == b"PING"
    with pytest.raises(InvalidCommand):
        next(found)


def test_rules_are_checked_after_the_command_before_was_executed() -> None:
    seen: list[int] = []
    acted: list[LookupCommand] = []
    decoder = after_magic(lambda verb, params: seen.append(len(acted)))
    acted.extend(decoder.feed(PING * 3))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"", None),
        (b"IDENTI", None),
        (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x01", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\0\0\0\x01x", None),
        (b"IDENTIFY\n\0\0\0\x00", None),
    ],
)
def test_end_of_the_stream_within_a_body_is_an_error(stream: bytes, error: str | None) -> None:
    for pieces in ([stream], strategies.single_bytes(stream)):
        decoder = after_magic()
        for piece in pieces:
            list(decoder.feed(piece))
        assert (str(decoder.end()) if decoder.end() else None) == error


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, "E_BAD_BODY IDENTIFY invalid body size -1"),
        (-(1 << 31), f"E_BAD_BODY IDENTIFY invalid body size -{1 << 31}"),
        (BODY_LENGTH_MAX + 1, f"E_BAD_BODY IDENTIFY body too big {BODY_LENGTH_MAX + 1} > {BODY_LENGTH_MAX}"),
    ],
)
def test_size_is_refused_as_soon_as_it_has_come(size: int, error: str) -> None:
    with pytest.raises(BadBody) as caught:
        list(after_magic().feed(b"IDENTIFY\n" + pack(">i", size)))
    assert str(caught.value) == error


def test_largest_body_and_longest_line_are_accepted() -> None:
    decoder = after_magic()
    (command,) = decoder.feed(b"IDENTIFY\n" + encode_answer(bytes(BODY_LENGTH_MAX)))
    assert len(command.body) == BODY_LENGTH_MAX
    (command,) = decoder.feed(b"x" * LINE_LENGTH_MAX + b"\n")
    assert len(command.verb) == LINE_LENGTH_MAX


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_longer_line_is_refused(end: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"longer than {LINE_LENGTH_MAX} bytes"):
        list(after_magic().feed(b"x" * (LINE_LENGTH_MAX + 1) + end))


# ---- answers ----------------------------------------------------------------------------------------------------


@given(st.data(), st.lists(st.binary(max_size=40), max_size=8))
def test_answers_do_not_depend_on_the_pieces(data: st.DataObject, payloads: list[bytes]) -> None:
    stream = b"".join(map(encode_answer, payloads))
    decoder = AnswerDecoder(answer_size_max=40)
    pieces = data.draw(strategies.chunkings(stream))
    assert [answer for piece in pieces for answer in decoder.feed(piece)] == payloads


@pytest.mark.parametrize("size", [-1, 101, (1 << 31) - 1])
def test_answer_beyond_the_limit_is_refused_when_its_size_has_come(size: int) -> None:
    decoder = AnswerDecoder(answer_size_max=100)
    assert decoder.feed(OK_ANSWER + pack(">i", size)[:3]) == [b"OK"]
    with pytest.raises(ProtocolError, match=rf"^answer size {size} is out of range 0-100$"):
        decoder.feed(pack(">i", size)[3:])


def test_largest_answer_is_accepted() -> None:
    assert AnswerDecoder(answer_size_max=2).feed(OK_ANSWER) == [b"OK"]


# ---- documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"version": ""},
        {"version": None},
        {"tcp_port": 0},
        {"http_port": 0},
        {"broadcast_address": ""},
    ],
)
def test_node_without_a_required_field_is_refused(change: dict[str, object]) -> None:
    document = json.loads(DOCUMENT) | change
    with pytest.raises(BadBody, match=r"^E_BAD_BODY IDENTIFY missing fields$"):
        decode_node(json.dumps(document).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"tcp_port": "4150"},
        {"tcp_port": 4150.0},
        {"http_port": True},
        {"hostname": []},
        {"remote_address": 5},
        {"topology_zone": 5},
        {"http_port": 1 << 63},
    ],
)
def test_values_of_other_types_are_refused(change: dict[str, object]) -> None:
    document = json.loads(DOCUMENT) | change
    with pytest.raises(BadBody, match=r"^E_BAD_BODY IDENTIFY failed to decode JSON body$"):
        decode_node(json.dumps(document).encode())


def test_unknown_fields_of_a_node_are_ignored() -> None:
    more = {"remote_address": "x", "id": 5, "topology_zone": None, "Hostname": "H"}
    document = json.loads(DOCUMENT) | more
    assert decode_node(json.dumps(document).encode()) == Node(
        broadcast_address="b", hostname="H", tcp_port=4150, http_port=4151, version="1.3.0"
    )


def test_answer_to_identify_is_decoded() -> None:
    info = LookupdInfo(broadcast_address="b", hostname="h", http_port=4161, tcp_port=4160, version="1.3.0")
    payload = b'{"broadcast_address":"b","hostname":"h","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    assert encode_info(info) == payload
    assert decode_info(payload) == info
    assert decode_info(b"{}") == LookupdInfo()


@pytest.mark.parametrize("payload", [b"", b"OK", b"E_INVALID no", b"[]", b'{"tcp_port":"4160"}'])
def test_wrong_answer_to_identify_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^the answer to IDENTIFY cannot be understood: "):
        decode_info(payload)
