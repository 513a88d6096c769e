from __future__ import annotations

import pytest

from nsqkit.errors import OptionError
from nsqkit.lookup.selection import select
from nsqkit.wire.lookup import Node


def node(host: str, *, zone: str = "") -> Node:
    return Node(broadcast_address=host, tcp_port=4150, http_port=4151, version="1", topology_zone=zone)


NODES = [node("a", zone="x"), node("b", zone="y"), node("::1")]


def test_default_selects_all_listed_addresses():
    found = select(NODES, discovery_filter=None, address_map=None)
    assert found == ["a:4150", "b:4150", "[::1]:4150"]


def test_filter_gets_nodes():
    seen = []

    def in_zone_x(nodes):
        seen.extend(nodes)
        return (node for node in nodes if node.topology_zone == "x")

    assert select(iter(NODES), discovery_filter=in_zone_x, address_map={"a:4150": "c:1"}) == ["c:1"]
    assert seen == NODES


def test_mapping_keeps_addresses_that_it_lacks():
    mapping = {"a:4150": "127.0.0.1:32768", "b:4150": None}
    assert select(NODES, discovery_filter=None, address_map=mapping) == ["127.0.0.1:32768", "[::1]:4150"]


def test_function_maps_every_address():
    def port_by_host(address):
        return f"localhost:{ord(address[0])}" if address[0] in "ab" else None

    assert select(NODES, discovery_filter=None, address_map=port_by_host) == ["localhost:97", "localhost:98"]


def test_equal_addresses_are_one():
    assert select(NODES, discovery_filter=None, address_map=lambda address: "proxy:1") == ["proxy:1"]


def test_map_can_return_unix_sockets():
    mapping = {"a:4150": "/run/a.sock", "b:4150": "@b", "[::1]:4150": None}
    assert select(NODES, discovery_filter=None, address_map=mapping) == ["/run/a.sock", "@b"]


@pytest.mark.parametrize("wrong", ["", "c", "c:x", 4150, b"c:1"])
def test_map_to_invalid_address_is_an_error(wrong):
    with pytest.raises(OptionError, match=r"^address_map makes .* of a:4150: "):
        select(NODES, discovery_filter=None, address_map=lambda address: wrong)


def test_error_of_filter_is_raised():
    def failing(nodes):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        select(NODES, discovery_filter=failing, address_map=None)
