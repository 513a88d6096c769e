from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import NSQError
from nsqkit.http.messages import (
    BOOLEANS,
    PIECE_ITEMS,
    HTTPError,
    Query,
    Request,
    Response,
    StoredBody,
    check_head,
    encode_json,
    parse_integer,
    parse_query,
    parse_target,
)


@pytest.mark.parametrize(
    ("raw", "query"),
    [
        ("", {}),
        ("&&", {}),
        ("topic=t", {"topic": ["t"]}),
        ("topic=t&channel=c", {"topic": ["t"], "channel": ["c"]}),
        ("a=1&a=2", {"a": ["1", "2"]}),
        ("a", {"a": [""]}),
        ("a=", {"a": [""]}),
        ("=b", {"": ["b"]}),
        ("a=b=c", {"a": ["b=c"]}),
        ("a=x+y", {"a": ["x y"]}),
        ("a=x%2By", {"a": ["x+y"]}),
        ("channel=c%23ephemeral", {"channel": ["c#ephemeral"]}),
        ("a=%26%3D%3b", {"a": ["&=;"]}),
        ("%61=%C3%A9", {"a": ["\xe9"]}),
        ("a=%ff", {"a": ["\udcff"]}),
        ("a=%25zz", {"a": ["%zz"]}),
    ],
)
def test_a_query_is_decoded_as_in_go(raw, query):
    assert parse_query(raw) == query


@pytest.mark.parametrize("raw", ["a;b", "a=1;b=2", ";", "a=%", "a=%z1", "a=%1", "%=a", "a=1&b=%g0"])
def test_a_query_that_go_refuses_is_an_invalid_request(raw):
    with pytest.raises(HTTPError) as info:
        parse_query(raw)
    assert (info.value.status, info.value.message) == (400, "INVALID_REQUEST")
    assert isinstance(info.value, NSQError)


def test_the_error_of_a_query_quotes_the_cause():
    with pytest.raises(HTTPError, match=r"400 INVALID_REQUEST: '%z1' is not a percent sign and two hex"):
        parse_query("a=b&c=%z1x")
    with pytest.raises(HTTPError, match="semicolon in the query 'a;b'"):
        parse_query("a;b")


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_a_fully_escaped_query_is_decoded(pairs):
    def escape(data: bytes) -> str:
        return "".join(f"%{byte:02x}" for byte in data)

    query = parse_query("&".join(f"{escape(key)}={escape(value)}" for key, value in pairs))
    read = [(key, value) for key, values in query.items() for value in values]
    expected: dict[str, list[str]] = {}
    for key, value in pairs:
        expected.setdefault(key.decode("utf-8", "surrogateescape"), []).append(value.decode("utf-8", "surrogateescape"))
    assert read == [(key, value) for key, values in expected.items() for value in values]


@pytest.mark.parametrize(
    ("target", "path", "raw_query"),
    [
        ("/ping", "/ping", ""),
        ("/pub?topic=t", "/pub", "topic=t"),
        ("/pub?a?b", "/pub", "a?b"),
        ("/config/a%20b+c", "/config/a b+c", ""),
        ("http://host:4151/pub?topic=t", "/pub", "topic=t"),
        ("http://host", "/", ""),
        ("http://host?a=b", "/", "a=b"),
        ("//pub", "//pub", ""),
        ("/a://b", "/a://b", ""),
        ("*", "*", ""),
    ],
)
def test_a_target_is_split(target, path, raw_query):
    assert parse_target(target) == (path, raw_query)


@pytest.mark.parametrize("target", ["ping", "", "?a=b", "/a%", "/a%zz", "host:4151"])
def test_an_invalid_target_is_refused(target):
    with pytest.raises(ValueError, match=r"does not begin with a slash|is not a percent sign"):
        parse_target(target)


def test_a_header_is_found_in_any_case():
    request = Request.of("GET", "/", headers=(("host", "a"), ("x-y", "1"), ("x-y", "2")))
    assert request.header("X-Y") == "1"
    assert request.header("Content-Type") == ""
    assert request.header("content-type", "none") == "none"


def test_the_length_of_a_body_may_be_unknown():
    assert Request.of("POST", "/", headers=(("content-length", "12"),)).content_length == 12
    assert Request.of("POST", "/").content_length is None


def test_the_query_of_a_request_is_decoded_on_demand():
    assert Query(Request.of("POST", "/pub?topic=a%24")).get("topic") == "a$"
    request = Request.of("POST", "/pub?a;b")
    with pytest.raises(HTTPError):
        Query(request)


def test_a_stored_body_is_read_with_one_byte_over_the_limit():
    request = Request.of("POST", "/", body=StoredBody(b"abcdefgh"))

    async def read() -> list[bytes]:
        return [await request.read(limit) for limit in (2, 0, 9, 9)]

    assert asyncio.run(read()) == [b"abc", b"d", b"efgh", b""]


TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json; charset=utf-8")
NSQ = ("X-Nsq-Content-Type", "nsq; version=1.0")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (Response.plain("OK"), Response(200, (TEXT,), b"OK")),
        (Response.plain("NOK - disk", status=500), Response(500, (TEXT,), b"NOK - disk")),
        (Response.v1(), Response(200, (NSQ,), b"")),
        (Response.v1(""), Response(200, (NSQ,), b"")),
        (Response.v1("OK"), Response(200, (TEXT, NSQ), b"OK")),
        (Response.v1(b"\xff"), Response(200, (TEXT, NSQ), b"\xff")),
        (Response.v1({"a": [1, None, True]}), Response(200, (JSON, NSQ), b'{"a":[1,null,true]}')),
        (Response.v1([]), Response(200, (JSON, NSQ), b"[]")),
        (Response.v1(0), Response(200, (JSON, NSQ), b"0")),
        (Response.v1(False), Response(200, (JSON, NSQ), b"false")),
        (Response.v1_error(404, "NOT_FOUND"), Response(404, (JSON, NSQ), b'{"message":"NOT_FOUND"}')),
        (
            Response.v1_error(405, "NO", ("Allow", "GET")),
            Response(405, (JSON, NSQ, ("Allow", "GET")), b'{"message":"NO"}'),
        ),
    ],
)
def test_answers_look_like_those_of_nsqd(response, expected):
    assert response == expected


def test_json_is_written_as_go_writes_it():
    assert encode_json({"a": "<b> & \u2028\xe9"}) == b'{"a":"\\u003cb\\u003e \\u0026 \\u2028\xc3\xa9"}'
    assert encode_json("\udcff") == b'"\\ufffd"'


@pytest.mark.parametrize("count", [0, 1, PIECE_ITEMS, 2 * PIECE_ITEMS + 1])
def test_an_object_in_pieces_is_the_same_as_a_whole(count):
    document = {f"<{number}>": [number] for number in range(count)}
    response = Response.v1_pieces(document.items())
    pieces = list(response.pieces)
    assert b"".join(pieces) == Response.v1(document).body
    assert len(pieces) == -(-count // PIECE_ITEMS) + 1
    assert response.headers == Response.v1(document).headers


@pytest.mark.parametrize("host", ["h", "", "h:4151", "[::1]:80", "a%b", "!$&'()*+,;=_~", "xn--e1a"])
def test_hosts_that_go_accepts(host):
    check_head(b"", b"1.1", [("host", host), ("x", "\t\xe9")])


@pytest.mark.parametrize("host", ["a b", "a/b", "u@h", 'a"', "a\\b", "{", "`", "<", "\xe9", "\x01", "a\n"])
def test_hosts_that_go_refuses(host):
    with pytest.raises(ValueError, match="malformed Host header"):
        check_head(b"", b"1.1", [("host", host)])


# ---- Query -------------------------------------------------------------------------------------------------


def query(raw: str) -> Query:
    return Query(Request.of("GET", f"/x?{raw}"))


def test_the_first_of_several_values_counts():
    assert query("a=1&b=2&a=3").get("a") == "1"


def test_a_missing_value_is_empty():
    asked = query("a=&b")
    assert [asked.get(key) for key in "abc"] == ["", "", ""]
    assert [key in asked for key in "abc"] == [True, True, False]


def test_names_are_bytes():
    asked = query("topic=t%FF+%C3%A9")
    assert asked.name("topic") == asked.required("topic") == b"t\xff \xc3\xa9"
    assert asked.name("channel") == b""


def test_a_required_value_may_be_empty():
    assert query("topic=").required("topic") == b""
    with pytest.raises(HTTPError) as caught:
        query("topic=").required("channel")
    assert (caught.value.status, caught.value.message) == (400, "MISSING_ARG_CHANNEL")


@pytest.mark.parametrize("raw", ["a;b", "a=%zz"])
def test_an_unreadable_query_is_refused(raw):
    with pytest.raises(HTTPError, match=r"^400 INVALID_REQUEST"):
        query(raw)


def test_words_for_booleans():
    assert BOOLEANS == {"true": True, "1": True, "false": False, "0": False}


@pytest.mark.parametrize("text", ["0", "-0", "+5", "007", str(-(1 << 63)), str((1 << 63) - 1)])
def test_parse_integer_reads_64_bits(text):
    assert parse_integer(text) == int(text)


@pytest.mark.parametrize("text", [str(1 << 63), str(-(1 << 63) - 1), "9" * 5000])
def test_parse_integer_refuses_what_64_bits_cannot_hold(text):
    with pytest.raises(ValueError, match="value out of range"):
        parse_integer(text)


@pytest.mark.parametrize("text", ["", "+", "1_0", " 1", "1.0", "0x1", "\u0661"])
def test_parse_integer_refuses_other_texts(text):
    with pytest.raises(ValueError, match="invalid syntax"):
        parse_integer(text)
