"""Views: the parts of answers that are compared."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from tests.differential.http_client import Answer
from tests.differential.views import answer_view, differences_of, is_at_rest, lookup_view

CLIENT = {"state": 3, "ready_count": 2, "in_flight_count": 1, "message_count": 1, "remote_address": "127.0.0.1:5000"}
CHANNEL = {"channel_name": "c", "depth": 0, "paused": False, "clients": [CLIENT | {"connect_ts": 17}]}
TOPIC = {"topic_name": "p-t", "depth": 0, "paused": False, "channels": [CHANNEL]}
STATS = {"version": "1.3.0", "start_time": 1, "topics": [TOPIC, TOPIC | {"topic_name": "other"}], "producers": None}


def view_of(document: Any, path: str = "/stats?format=json", **headers: str) -> Any:
    answer = Answer(200, headers, json.dumps(document).encode())
    return answer_view(path, answer, {5000: "a"}, "p-")


def changed(topic: dict[str, Any] | None = None, channel: dict[str, Any] | None = None, **client: Any) -> Any:
    clients = [CLIENT | client]
    return STATS | {
        "topics": [TOPIC | {"channels": [CHANNEL | {"clients": clients} | (channel or {})]} | (topic or {})]
    }


def test_stats_are_those_of_the_sequence_by_name():
    body = view_of(STATS)["body"]
    assert list(body["topics"]) == ["p-t"]
    assert body["topics"]["p-t"]["channels"]["c"]["clients"]["a"]["in_flight_count"] == 1
    assert "start_time" not in body


def test_addresses_times_and_dates_are_equal():
    other = json.loads(json.dumps(STATS).replace("17", "18"))
    assert view_of(STATS, date="monday") == view_of(other | {"start_time": 2}, date="friday")


def test_difference_is_found_with_its_place():
    found = list(differences_of(view_of(STATS), view_of(changed(finish_count=1, in_flight_count=0))))
    assert [(where.rpartition("/")[2], reference, ours) for where, reference, ours in found] == [
        ("finish_count", "absent", 1),
        ("in_flight_count", 1, 0),
    ]


@pytest.mark.parametrize(
    ("stats", "at_rest"),
    [
        (STATS, True),
        (changed({"depth": 1}), False),
        (changed({"depth": 1, "paused": True}), True),
        (changed({"depth": 1, "channels": []}), True),
        (changed(channel={"depth": 1}), False),
        (changed(channel={"depth": 1, "paused": True}), True),
        (changed(channel={"depth": 1, "clients": [CLIENT | {"in_flight_count": 2}]}), True),
        (changed(channel={"depth": 1, "clients": [CLIENT | {"state": 4}]}), True),
    ],
)
def test_messages_that_can_move_are_recognized(stats: Any, at_rest: bool):
    assert is_at_rest(view_of(stats)["body"]) == at_rest


def test_order_of_clients_in_the_text_does_not_matter():
    def text(*clients: str) -> Any:
        lines = "\n".join(["nsqd v1.3.0 (built w/go1.2)", "start_time now", "   [c] depth: 1", *clients, ""])
        return answer_view("/stats", Answer(200, {}, lines.encode()), {5000: "a", 5001: "b"}, "p-")

    first, second = (f"        [V2 127.0.0.1:{port}   ] state: 3 connected: {port}ms" for port in (5000, 5001))
    assert text(first, second) == text(second, first)
    assert text(first, second) != text(first, second.replace("state: 3", "state: 4"))


def test_lists_of_nsqlookupd_are_sorted():
    first, second = ({"broadcast_address": name, "last_update": number} for number, name in enumerate("ab"))
    assert lookup_view({"producers": [first, second]}, {}) == lookup_view({"producers": [second, first]}, {})
    assert lookup_view({"channels": ["b", "a"]}, {}) == {"channels": ["a", "b"]}
    tombstone = {"tombstoned": True, "tombstoned_at": 5, "id": "127.0.0.1:5000"}
    assert lookup_view(tombstone, {5000: "a"}) == {"tombstoned": True, "tombstoned_at": "time", "id": "a"}


def test_status_and_headers_are_compared():
    answer = Answer(200, {"content-type": "text/plain"}, b"OK")
    others = [attrs.evolve(answer, status=404), attrs.evolve(answer, headers={}), attrs.evolve(answer, body=b"")]
    views = [answer_view("/ping", each, {}, "p-") for each in (answer, *others)]
    assert [view == views[0] for view in views] == [True, False, False, False]
