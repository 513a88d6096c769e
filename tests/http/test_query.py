from __future__ import annotations

import pytest

from nsqkit.http.messages import HTTPError, Request
from nsqkit.http.query import BOOLEANS, Query


def query(raw: str) -> Query:
    return Query(Request.of("GET", f"/x?{raw}"))


def test_the_first_of_several_values_counts():
    assert query("a=1&b=2&a=3").get("a") == "1"


def test_what_is_missing_is_empty_and_not_there():
    asked = query("a=&b")
    assert [asked.get(key) for key in "abc"] == ["", "", ""]
    assert [key in asked for key in "abc"] == [True, True, False]


def test_names_are_bytes():
    asked = query("topic=t%FF+%C3%A9")
    assert asked.name("topic") == asked.required("topic") == b"t\xff \xc3\xa9"
    assert asked.name("channel") == b""


def test_what_has_to_be_there_may_be_empty_but_not_missing():
    assert query("topic=").required("topic") == b""
    with pytest.raises(HTTPError) as caught:
        query("topic=").required("channel")
    assert (caught.value.status, caught.value.message) == (400, "MISSING_ARG_CHANNEL")


@pytest.mark.parametrize("raw", ["a;b", "a=%zz"])
def test_what_cannot_be_read_is_refused(raw):
    with pytest.raises(HTTPError, match=r"^400 INVALID_REQUEST"):
        query(raw)


def test_words_for_yes_and_no():
    assert BOOLEANS == {"true": True, "1": True, "false": False, "0": False}
