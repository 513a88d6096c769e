from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nsqkit.errors import OptionError
from nsqkit.http.messages import Response
from nsqkit.lookup.responses import decode_names, decode_nodes, decode_registered_nodes, tcp_address
from nsqkit.testing.http_faults import HTTPFault
from nsqkit.testing.lookup_faults import Edit, LookupFaults

NODES: dict[str, Any] = {
    name: {
        "remote_address": "127.0.0.1:1",
        "hostname": name,
        "broadcast_address": name,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
    for name in ("one", "two")
}
TOPICS = {"one": ["t", "u"], "two": ["t"]}


def answer(path: str, topic: str = "") -> tuple[int, dict[str, Any]]:
    """Return the answer of an nsqlookupd on which both nsqds have t, and one has u."""
    listed = [name for name in NODES if topic in TOPICS[name]]
    if path == "/lookup" and not listed:
        return 404, {"message": "TOPIC_NOT_FOUND"}
    nodes = [{**NODES[name], "topics": TOPICS[name], "tombstones": [False for _ in TOPICS[name]]} for name in NODES]
    return 200, {
        "/lookup": {"channels": ["c"], "producers": [NODES[name] for name in listed]},
        "/channels": {"channels": ["c"]},
        "/topics": {"topics": ["t", "u"]},
        "/nodes": {"producers": nodes},
    }[path]


def lookup(faults: LookupFaults, topic: str) -> list[str] | str:
    status, document = changed(faults, "/lookup", topic)
    return [tcp_address(node) for node in decode_nodes(document)] if status == 200 else str(document["message"])


def nodes(faults: LookupFaults) -> dict[str, list[str]]:
    _, document = changed(faults, "/nodes")
    return {tcp_address(entry.node): list(entry.topics) for entry in decode_registered_nodes(document)}


def topics(faults: LookupFaults) -> list[str]:
    return decode_names(changed(faults, "/topics")[1], "topics")


def changed(faults: LookupFaults, path: str, topic: str = "") -> tuple[int, dict[str, Any]]:
    status, document = answer(path, topic)
    for action in faults.plan(path, topic):
        assert isinstance(action, Edit)
        status, document = action.apply(path, status, document)
    Response.v1(document)  # it can be encoded
    return status, document


@pytest.fixture
def faults() -> LookupFaults:
    return LookupFaults(1)


def test_stale_nsqd_is_listed_beside_the_others(faults: LookupFaults) -> None:
    faults.stale("t", "gone:1")
    faults.stale("new", "gone:1", "gone:2")
    assert lookup(faults, "t") == ["one:4150", "two:4150", "gone:1"]
    assert lookup(faults, "u") == ["one:4150"]
    assert lookup(faults, "new") == ["gone:1", "gone:2"]
    assert nodes(faults)["gone:2"] == ["new"]
    assert topics(faults) == ["t", "u", "new"]
    assert changed(faults, "/channels", "t")[1] == {"channels": ["c"]}


def test_empty_lists_no_nsqd(faults: LookupFaults) -> None:
    with faults.empty("t"):
        assert lookup(faults, "t") == []
        assert lookup(faults, "u") == ["one:4150"]
        assert nodes(faults) == {"one:4150": ["u"], "two:4150": []}
    faults.empty()
    assert lookup(faults, "u") == []
    assert lookup(faults, "new") == "TOPIC_NOT_FOUND"
    assert nodes(faults) == {}
    assert topics(faults) == ["t", "u"]


def test_hidden_topic_is_unknown(faults: LookupFaults) -> None:
    faults.hide(topic="t")
    assert lookup(faults, "t") == "TOPIC_NOT_FOUND"
    assert lookup(faults, "u") == ["one:4150"]
    assert lookup(faults, "new") == "TOPIC_NOT_FOUND"
    assert topics(faults) == ["u"]
    assert nodes(faults) == {"one:4150": ["u"], "two:4150": []}
    assert changed(faults, "/channels", "t")[1] == {"channels": []}


def test_hidden_nsqd_is_not_listed(faults: LookupFaults) -> None:
    with faults.hide(node="one:4150"):
        assert lookup(faults, "t") == ["two:4150"]
        assert nodes(faults) == {"two:4150": ["t"]}
    faults.hide(topic="t", node="one:4150")
    assert lookup(faults, "t") == ["two:4150"]
    assert lookup(faults, "u") == ["one:4150"]
    assert nodes(faults) == {"one:4150": ["u"], "two:4150": ["t"]}
    assert topics(faults) == ["t", "u"]


def test_rule_counts_only_answers_that_it_changes(faults: LookupFaults) -> None:
    rule = faults.stale("t", "gone:1", times=1)
    assert lookup(faults, "u") == ["one:4150"]
    assert lookup(faults, "t")[-1] == "gone:1"
    assert lookup(faults, "t")[-1] == "two:4150"
    assert rule.count == 1


@pytest.mark.parametrize(
    ("add", "error"),
    [
        (lambda faults: faults.stale("t"), "addresses is empty; allowed is one or more"),
        (lambda faults: faults.stale("t", "gone"), "gone"),
        (lambda faults: faults.stale("a b", "gone:1"), "topic name 'a b' is not valid"),
        (lambda faults: faults.empty("t", path="/ping"), "path is '/ping', whose answer has no such list"),
        (lambda faults: faults.hide(), "topic and node are None; allowed is a topic, a node or both"),
        (lambda faults: faults.hide(node="gone"), "gone"),
    ],
    ids=["no address", "no port", "topic", "path", "nothing", "node"],
)
def test_wrong_value_is_refused(faults: LookupFaults, add: Callable[[LookupFaults], HTTPFault], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        add(faults)
