from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.producer.arguments import Bodies, check_seconds, delay_ms, encode_key, topic_name
from nsqkit.producer.serializers import JSON


def bodies(**changes: object) -> Bodies:
    return Bodies(**{"serializer": None, "max_msg_size": 10, "max_body_size": 100, **changes})  # type: ignore[arg-type]


def test_good_bodies_are_taken_as_they_are():
    many = [b"x", b"y" * 10]
    assert bodies().take(b"x") == b"x"
    assert bodies().take_all(many) is many
    assert bodies().take_all((b"x",)) == (b"x",)


class Subclass(bytes):
    """Bytes of the user's own kind."""


def test_bytes_of_the_users_own_kind_are_bytes():
    assert bodies().take(Subclass(b"x")) == b"x"
    assert list(bodies().take_all([Subclass(b"x")])) == [b"x"]


def test_a_serializer_makes_them_and_their_sizes_count():
    assert bodies(serializer=JSON).take([1, 2]) == b"[1,2]"
    assert list(bodies(serializer=JSON).take_all([1, "x"])) == [b"1", b'"x"']
    with pytest.raises(OptionError, match="body has 11 bytes; allowed are 1 to max_msg_size, 10"):
        bodies(serializer=JSON).take("x" * 9)
    with pytest.raises(OptionError, match=r"bodies\[1\] has 11 bytes"):
        bodies(serializer=JSON).take_all(["x", "x" * 9])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "has 0 bytes; allowed are 1 to max_msg_size, 10"),
        (b"x" * 11, "has 11 bytes; allowed are 1 to max_msg_size, 10"),
        ("text", "is a str; allowed is bytes"),
        (None, "is a NoneType; allowed is bytes"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(body, sentence):
    with pytest.raises(OptionError) as caught:
        bodies().take(body)
    assert str(caught.value) == f"body {sentence}"
    with pytest.raises(OptionError) as caught:
        bodies().take_all([b"x", body])
    assert str(caught.value) == f"bodies[1] {sentence}"


@pytest.mark.parametrize("many", [[], (), b"x", "x", None, 5, {b"x"}], ids=repr)
def test_what_is_no_list_of_bodies_is_refused(many):
    with pytest.raises(OptionError, match=r"^bodies is .*; allowed is a list of at least one bytes$"):
        bodies().take_all(many)


def test_together_they_have_a_limit_too():
    assert bodies(max_body_size=4 + 2 * 14).take_all([b"x" * 10] * 2)
    with pytest.raises(OptionError, match="2 bodies are 32 bytes on the wire; allowed are max_body_size, 31"):
        bodies(max_body_size=31).take_all([b"x" * 10] * 2)


@given(sizes=st.lists(st.integers(1, 10), min_size=1, max_size=8), most=st.integers(5, 120))
def test_they_are_refused_exactly_if_all_of_them_are_too_much(sizes, most):
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
    with pytest.raises(OptionError, match="key is 5; allowed is a str or bytes"):
        encode_key(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 61, float("nan"), True, "5", None], ids=repr)
def test_a_wrong_time_is_refused(value):
    with pytest.raises(OptionError) as caught:
        check_seconds("timeout", value, 60)
    assert str(caught.value) == f"timeout is {value!r}; allowed is 0 to 60 seconds"


def test_a_delay_is_told_in_milliseconds():
    assert [delay_ms(delay, 60) for delay in (0, 1.2345, 60)] == [0, 1234, 60_000]
    with pytest.raises(OptionError, match="delay is 61; allowed is 0 to 60 seconds"):
        delay_ms(61, 60)


def test_a_topic_is_checked():
    assert topic_name("t#ephemeral") == b"t#ephemeral"
    with pytest.raises(OptionError, match="topic name"):
        topic_name("a b")
