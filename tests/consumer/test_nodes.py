from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.nodes import Change, Nodes


def test_named_ones_are_wanted_until_they_are_taken_back():
    nodes = Nodes(["a:1"])
    nodes.add("b:1")
    assert nodes.wanted == ["a:1", "b:1"]
    assert nodes.listed([]) == Change(come=[], gone=[])
    nodes.remove("a:1")
    assert nodes.wanted == ["b:1"]
    assert "a:1" not in nodes


def test_listed_ones_come_and_go_with_the_list():
    nodes = Nodes()
    assert nodes.listed(["a:1", "b:1"]) == Change(come=["a:1", "b:1"], gone=[])
    assert nodes.listed(["b:1", "c:1"]) == Change(come=["c:1"], gone=["a:1"])
    assert nodes.wanted == ["b:1", "c:1"]


def test_one_that_is_named_and_listed_stays_when_it_is_listed_no_more():
    nodes = Nodes(["a:1"])
    assert nodes.listed(["a:1"]) == Change(come=[], gone=[])
    assert nodes.listed([]) == Change(come=[], gone=[])
    assert "a:1" in nodes


def test_a_list_brings_back_what_the_user_has_left():
    nodes = Nodes()
    nodes.listed(["a:1"])
    nodes.remove("a:1")
    assert "a:1" not in nodes
    assert nodes.listed(["a:1"]) == Change(come=["a:1"], gone=[])


addresses = st.sets(st.sampled_from("abcde"))


@given(named=addresses, lists=st.lists(addresses, max_size=6))
def test_changes_lead_from_list_to_list(named, lists):
    nodes = Nodes(sorted(named))
    wanted = set(named)
    for listed in lists:
        change = nodes.listed(sorted(listed))
        assert not wanted & {*change.come}
        assert {*change.gone} <= wanted
        wanted = (wanted | {*change.come}) - {*change.gone}
        assert wanted == named | listed == {*nodes.wanted}
