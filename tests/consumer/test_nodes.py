from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.nodes import Nodes


def test_named_addresses_are_wanted_until_removed():
    nodes = Nodes(["a:1"], count_max=100)
    nodes.add("b:1")
    assert nodes.wanted == ["a:1", "b:1"]
    assert nodes.set_listed([]) == []
    nodes.remove("a:1")
    assert nodes.wanted == ["b:1"]
    assert "a:1" not in nodes


def test_listed_addresses_follow_the_list():
    nodes = Nodes(count_max=100)
    assert nodes.set_listed(["a:1", "b:1"]) == []
    assert nodes.set_listed(["b:1", "c:1"]) == ["a:1"]
    assert nodes.wanted == ["b:1", "c:1"]


def test_named_address_stays_after_delisting():
    nodes = Nodes(["a:1"], count_max=100)
    assert nodes.set_listed(["a:1"]) == []
    assert nodes.set_listed([]) == []
    assert "a:1" in nodes


def test_removed_address_is_wanted_again_if_listed():
    nodes = Nodes(count_max=100)
    nodes.set_listed(["a:1"])
    nodes.remove("a:1")
    assert "a:1" not in nodes
    assert nodes.set_listed(["a:1"]) == []


def test_wanted_addresses_are_limited():
    nodes = Nodes(["n:1"], count_max=3)
    assert nodes.set_listed(["a:1", "b:1", "c:1", "d:1"]) == []
    assert (nodes.listed_count, nodes.left_out_count) == (4, 2)
    assert nodes.wanted == ["n:1", "a:1", "b:1"]
    assert "c:1" not in nodes


def test_wanted_addresses_stay_wanted_while_listed():
    nodes = Nodes(count_max=2)
    nodes.set_listed(["a:1", "b:1"])
    assert nodes.set_listed(["x:1", "y:1", "b:1", "a:1"]) == []
    assert nodes.set_listed(["x:1", "y:1", "a:1"]) == ["b:1"]


def test_named_addresses_count_first_and_are_never_omitted():
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
def test_wanted_addresses_are_the_named_and_the_listed(named, lists):
    nodes = Nodes(sorted(named), count_max=100)
    wanted = set(named)
    for listed in lists:
        gone = nodes.set_listed(sorted(listed))
        assert {*gone} == wanted - named - listed
        wanted = named | listed
        assert wanted == {*nodes.wanted}
