from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.lookup.responses import (
    RegisteredNode,
    decode_names,
    decode_nodes,
    decode_registered_nodes,
    tcp_address,
)
from nsqkit.wire.lookup import Node

ENTRY: dict[str, Any] = {
    "remote_address": "10.0.0.1:5555",
    "hostname": "h",
    "broadcast_address": "b",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
    "topology_zone": "z",
    "topology_region": "r",
}
NODE = Node(
    broadcast_address="b",
    hostname="h",
    tcp_port=4150,
    http_port=4151,
    version="1.3.0",
    topology_zone="z",
    topology_region="r",
)


def test_nodes_are_decoded():
    assert decode_nodes({"channels": ["c"], "producers": [ENTRY]}) == [NODE]
    assert tcp_address(NODE) == "b:4150"


def test_ipv6_node_is_decoded():
    (node,) = decode_nodes({"producers": [ENTRY | {"broadcast_address": "fe80::1%eth0"}]})
    assert tcp_address(node) == "[fe80::1%eth0]:4150"


@pytest.mark.parametrize(
    ("entry", "node"),
    [
        ({"address": "a", "tcp_port": 1}, Node(broadcast_address="a", tcp_port=1, http_port=0, version="")),
        (
            {"broadcast_address": "b", "tcp_port": 1, "http_port": None, "version": 5, "hostname": []},
            Node(broadcast_address="b", tcp_port=1, http_port=0, version=""),
        ),
    ],
)
def test_optional_fields_may_be_missing(entry, node):
    assert decode_nodes({"producers": [entry]}) == [node]


WRONG: list[Any] = [
    None,
    1,
    "b:4150",
    [],
    {},
    ENTRY | {"broadcast_address": ""},
    ENTRY | {"broadcast_address": None},
    ENTRY | {"broadcast_address": ["b"]},
    ENTRY | {"broadcast_address": "a b"},
    ENTRY | {"broadcast_address": "a/b"},
    ENTRY | {"broadcast_address": "a\x00"},
    ENTRY | {"broadcast_address": "[::1]"},
    ENTRY | {"tcp_port": 0},
    ENTRY | {"tcp_port": -1},
    ENTRY | {"tcp_port": 65536},
    ENTRY | {"tcp_port": "4150"},
    ENTRY | {"tcp_port": 4150.0},
    ENTRY | {"tcp_port": True},
]


@pytest.mark.parametrize("entry", WRONG, ids=repr)
def test_invalid_entry_is_skipped(entry):
    assert decode_nodes({"producers": [entry, ENTRY]}) == [NODE]


@pytest.mark.parametrize("entry", WRONG, ids=repr)
def test_list_of_invalid_entries_is_an_error(entry):
    for decode in (decode_nodes, decode_registered_nodes):
        with pytest.raises(ValueError, match=r"^none of the 2 producers can be understood$"):
            decode({"producers": [entry, entry]})


@pytest.mark.parametrize("producers", [1, "x", {}, True])
def test_other_type_than_list_is_an_error(producers):
    with pytest.raises(ValueError, match=r"^the answer has no list of producers$"):
        decode_nodes({"producers": producers})


def test_missing_list_is_an_error():
    with pytest.raises(ValueError, match=r"^the answer has no list of producers$"):
        decode_nodes({"channels": []})


@pytest.mark.parametrize("producers", [[], None])
def test_empty_list_is_decoded(producers):
    assert decode_nodes({"producers": producers}) == []


def test_registered_nodes_are_decoded():
    entry = ENTRY | {
        "topics": ["t", "u#ephemeral", "no name", 1, "v"],
        "tombstones": [False, True, False, False],
    }
    expected = RegisteredNode(NODE, {"t": False, "u#ephemeral": True, "v": False})
    assert decode_registered_nodes({"producers": [entry]}) == [expected]
    assert decode_registered_nodes({"producers": [ENTRY]}) == [RegisteredNode(NODE, {})]


def test_names_are_decoded():
    assert decode_names({"topics": ["t", "a b", "", None, "x" * 65, "u#ephemeral", "\ud800"]}, "topics") == [
        "t",
        "u#ephemeral",
    ]
    assert decode_names({"topics": []}, "topics") == []
    with pytest.raises(ValueError, match=r"^the answer has no list of channels$"):
        decode_names({"topics": []}, "channels")
    with pytest.raises(ValueError, match=r"^none of the 1 topics can be understood$"):
        decode_names({"topics": ["a b"]}, "topics")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children)
        | st.dictionaries(st.sampled_from(["producers", "topics", "tombstones", *ENTRY]) | st.text(), children)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["producers", "topics"]), JSON))
def test_any_document_is_decoded_or_refused(document):
    document = json.loads(json.dumps(document))
    for decode in (decode_nodes, decode_registered_nodes, lambda document: decode_names(document, "topics")):
        try:
            assert isinstance(decode(document), list)
        except ValueError:
            pass
