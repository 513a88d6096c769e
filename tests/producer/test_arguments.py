from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.serializers import JSON, EncodedBody
from nsqkit.errors import OptionError
from nsqkit.producer.arguments import Bodies, delay_ms, encode_key, topic_name, unite_addresses


def bodies(**changes: object) -> Bodies:
    return Bodies(**{"serializer": None, "max_msg_size": 10, "max_body_size": 100, **changes})  # type: ignore[arg-type]


def test_valid_bodies_are_returned_unchanged():
    many = [b"x", b"y" * 10]
    assert bodies().take(b"x") == b"x"
    assert bodies().take_all(many) is many
    assert bodies().take_all((b"x",)) == (b"x",)


class Subclass(bytes):
    """Bytes of the user's own kind."""


def test_subclasses_of_bytes_are_accepted():
    assert bodies().take(Subclass(b"x")) == b"x"
    assert list(bodies().take_all([Subclass(b"x")])) == [b"x"]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_kinds_of_bytes_are_copied(kind):
    source = bytearray(b"xy")
    taken, many = bodies().take(kind(source)), bodies().take_all([kind(source), b"z"])
    source[0] = 0
    assert (taken, list(many)) == (b"xy", [b"xy", b"z"])
    assert type(taken) is type(many[0]) is bytes
    with pytest.raises(OptionError, match="body has 11 bytes; allowed are 1 to max_msg_size, 10"):
        bodies().take(kind(bytes(11)))


def test_sizes_are_those_of_serialized_bodies():
    assert bodies(serializer=JSON).take([1, 2]) == b"[1,2]"
    assert list(bodies(serializer=JSON).take_all([1, "x"])) == [b"1", b'"x"']
    with pytest.raises(OptionError, match="body has 11 bytes; allowed are 1 to max_msg_size, 10"):
        bodies(serializer=JSON).take("x" * 9)
    with pytest.raises(OptionError, match=r"bodies\[1\] has 11 bytes"):
        bodies(serializer=JSON).take_all(["x", "x" * 9])


def test_an_encoded_body_is_not_encoded_again_but_checked():
    assert bodies(serializer=JSON).take(EncodedBody(b"{")) == b"{"
    assert list(bodies(serializer=JSON).take_all([1, EncodedBody(b"\xff")])) == [b"1", b"\xff"]
    with pytest.raises(OptionError, match="body has 11 bytes; allowed are 1 to max_msg_size, 10"):
        bodies(serializer=JSON).take(EncodedBody(bytes(11)))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "has 0 bytes; allowed are 1 to max_msg_size, 10"),
        (b"x" * 11, "has 11 bytes; allowed are 1 to max_msg_size, 10"),
        ("text", "is a str; allowed is bytes"),
        (None, "is a NoneType; allowed is bytes"),
    ],
)
def test_wrong_body_is_refused_with_its_index(body, sentence):
    with pytest.raises(OptionError) as caught:
        bodies().take(body)
    assert str(caught.value) == f"body {sentence}"
    with pytest.raises(OptionError) as caught:
        bodies().take_all([b"x", body])
    assert str(caught.value) == f"bodies[1] {sentence}"


@pytest.mark.parametrize("many", [[], (), b"x", bytearray(b"x"), memoryview(b"x"), "x", None, 5, {b"x"}], ids=type)
def test_bodies_that_are_not_a_list_are_refused(many):
    with pytest.raises(OptionError, match=r"^bodies is .*; allowed is a list of at least one bytes$"):
        bodies().take_all(many)


def test_bodies_together_have_a_limit():
    assert bodies(max_body_size=4 + 2 * 14).take_all([b"x" * 10] * 2)
    with pytest.raises(OptionError, match="2 bodies are 32 bytes on the wire; allowed are max_body_size, 31"):
        bodies(max_body_size=31).take_all([b"x" * 10] * 2)


@given(sizes=st.lists(st.integers(1, 10), min_size=1, max_size=8), most=st.integers(5, 120))
def test_bodies_are_refused_exactly_above_the_limit(sizes, most):
    many = [b"x" * size for size in sizes]
    size = 4 + sum(4 + one for one in sizes)
    if size <= most:
        assert bodies(max_body_size=most).take_all(many) is many
    else:
        with pytest.raises(OptionError, match=f"{len(many)} bodies are {size} bytes on the wire; .*, {most}"):
            bodies(max_body_size=most).take_all(many)


def test_a_key_is_text_or_bytes():
    assert encode_key(None) is None
    assert encode_key("Käse\ud800") == "Käse".encode() + b"\xed\xa0\x80"
    assert encode_key(b"\xff") == b"\xff"
    assert encode_key(bytearray(b"k")) == encode_key(memoryview(b"k")) == b"k"
    with pytest.raises(OptionError, match="key is 5; allowed is a str or bytes"):
        encode_key(5)  # type: ignore[arg-type]


def test_delay_is_converted_to_milliseconds():
    assert [delay_ms(delay, 60) for delay in (0, 1.2345, 60)] == [0, 1234, 60_000]
    assert delay_ms(timedelta(milliseconds=1500), 60) == 1500
    with pytest.raises(OptionError, match="delay is 61; allowed is 0 to 60 seconds"):
        delay_ms(61, 60)


def test_a_topic_is_checked():
    assert topic_name("t#ephemeral") == b"t#ephemeral"
    with pytest.raises(OptionError, match="topic name"):
        topic_name("a b")


@pytest.mark.parametrize("topic", [["a"], {}, bytearray(b"a"), b"a", None, 5], ids=repr)
def test_a_topic_of_another_type_is_refused(topic):
    with pytest.raises(OptionError) as caught:
        topic_name(topic)
    assert str(caught.value) == f"topic name is {topic!r}; allowed is a str"


def test_addresses_as_arguments_and_as_a_list_are_united():
    assert unite_addresses(("a:1", "b:1"), ["c:1", "a:1"], "nsqd_tcp_addresses") == ("a:1", "b:1", "c:1")
    with pytest.raises(OptionError, match=r"^nsqd_tcp_addresses is empty; allowed is one address or more$"):
        unite_addresses((), [], "nsqd_tcp_addresses")
    assert unite_addresses(("http://a:1/x",), [], "nsqd_http_addresses") == ("http://a:1/x",)
