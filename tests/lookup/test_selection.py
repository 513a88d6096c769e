from __future__ import annotations

import pytest

from nsqkit.errors import OptionError
from nsqkit.lookup.selection import select
from nsqkit.wire.lookup import Node


def node(host: str, *, zone: str = "") -> Node:
    return Node(broadcast_address=host, tcp_port=4150, http_port=4151, version="1", topology_zone=zone)


NODES = [node("a", zone="x"), node("b", zone="y"), node("::1")]


def test_by_default_all_are_taken_as_they_are_listed():
    found = select(NODES, discovery_filter=None, address_map=None)
    assert found == ["a:4150", "b:4150", "[::1]:4150"]


def test_the_filter_sees_the_nodes():
    seen = []

    def in_zone_x(nodes):
        seen.extend(nodes)
        return (node for node in nodes if node.topology_zone == "x")

    assert select(iter(NODES), discovery_filter=in_zone_x, address_map={"a:4150": "c:1"}) == ["c:1"]
    assert seen == NODES


def test_a_mapping_leaves_alone_what_it_does_not_have():
    mapping = {"a:4150": "127.0.0.1:32768", "b:4150": None}
    assert select(NODES, discovery_filter=None, address_map=mapping) == ["127.0.0.1:32768", "[::1]:4150"]


def test_a_function_says_for_each():
    def port_by_host(address):
        return f"localhost:{ord(address[0])}" if address[0] in "ab" else None

    assert select(NODES, discovery_filter=None, address_map=port_by_host) == ["localhost:97", "localhost:98"]


def test_two_at_one_address_are_one():
    assert select(NODES, discovery_filter=None, address_map=lambda address: "proxy:1") == ["proxy:1"]


def test_a_map_may_lead_to_unix_sockets():
    mapping = {"a:4150": "/run/a.sock", "b:4150": "@b", "[::1]:4150": None}
    assert select(NODES, discovery_filter=None, address_map=mapping) == ["/run/a.sock", "@b"]


@pytest.mark.parametrize("wrong", ["", "c", "c:x", 4150, b"c:1"])
def test_a_map_that_leads_nowhere(wrong):
    with pytest.raises(OptionError, match=r"^address_map makes .* of a:4150: "):
        select(NODES, discovery_filter=None, address_map=lambda address: wrong)


def test_what_a_filter_raises_is_the_callers():
    def failing(nodes):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        select(NODES, discovery_filter=failing, address_map=None)
