from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.nodes import Nodes


def test_named_ones_are_wanted_until_they_are_taken_back():
    nodes = Nodes(["a:1"], count_max=100)
    nodes.add("b:1")
    assert nodes.wanted == ["a:1", "b:1"]
    assert nodes.set_listed([]) == []
    nodes.remove("a:1")
    assert nodes.wanted == ["b:1"]
    assert "a:1" not in nodes


def test_listed_ones_come_and_go_with_the_list():
    nodes = Nodes(count_max=100)
    assert nodes.set_listed(["a:1", "b:1"]) == []
    assert nodes.set_listed(["b:1", "c:1"]) == ["a:1"]
    assert nodes.wanted == ["b:1", "c:1"]


def test_one_that_is_named_and_listed_stays_when_it_is_listed_no_more():
    nodes = Nodes(["a:1"], count_max=100)
    assert nodes.set_listed(["a:1"]) == []
    assert nodes.set_listed([]) == []
    assert "a:1" in nodes


def test_a_list_brings_back_what_the_user_has_left():
    nodes = Nodes(count_max=100)
    nodes.set_listed(["a:1"])
    nodes.remove("a:1")
    assert "a:1" not in nodes
    assert nodes.set_listed(["a:1"]) == []


def test_no_more_are_wanted_than_there_is_room_for():
    nodes = Nodes(["n:1"], count_max=3)
    assert nodes.set_listed(["a:1", "b:1", "c:1", "d:1"]) == []
    assert (nodes.listed_count, nodes.left_out_count) == (4, 2)
    assert nodes.wanted == ["n:1", "a:1", "b:1"]
    assert "c:1" not in nodes


def test_those_that_have_a_place_keep_it_while_they_are_listed():
    nodes = Nodes(count_max=2)
    nodes.set_listed(["a:1", "b:1"])
    assert nodes.set_listed(["x:1", "y:1", "b:1", "a:1"]) == []
    assert nodes.set_listed(["x:1", "y:1", "a:1"]) == ["b:1"]


def test_named_ones_count_first_and_are_never_left_out():
    nodes = Nodes(["n:1", "n:2", "n:3"], count_max=2)
    assert nodes.wanted == ["n:1", "n:2", "n:3"]
    assert nodes.set_listed(["a:1", "n:1"]) == []
    assert nodes.left_out_count == 1
    nodes.remove("n:2")
    nodes.remove("n:3")
    assert nodes.wanted == ["n:1", "a:1"]
    nodes.add("n:4")
    assert nodes.wanted == ["n:1", "n:4"]
    assert nodes.is_named("n:4")
    assert not nodes.is_named("a:1")


addresses = st.sets(st.sampled_from("abcde"))


@given(named=addresses, lists=st.lists(addresses, max_size=6))
def test_wanted_ones_are_the_named_and_the_listed(named, lists):
    nodes = Nodes(sorted(named), count_max=100)
    wanted = set(named)
    for listed in lists:
        gone = nodes.set_listed(sorted(listed))
        assert {*gone} == wanted - named - listed
        wanted = named | listed
        assert wanted == {*nodes.wanted}
