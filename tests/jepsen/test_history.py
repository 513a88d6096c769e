from __future__ import annotations

import io

import pytest

from tests.jepsen.history import Event, HistoryError, Recorder, Setup, read_history

SETUP = Setup("fsync", brokers=3, channels=("a", "b"), msg_timeout=2.0, seed=7, command="nsqd")
EVENTS = [
    Event("invoke", 0.25, broker=1, body="m\n\u2028"),
    Event("deliver", 1, connection=4, body="\xff", id="0123456789abcdef", attempt=2),
    Event("fault", 2, broker=0, fault="kill", text="after 3 s"),
    Event("end", 3),
]


def test_a_file_has_what_was_recorded():
    file = io.StringIO()
    recorder = Recorder(file, SETUP)
    for event in EVENTS:
        recorder.record(event)
    setup, events = read_history(file.getvalue().splitlines(keepends=True))
    assert setup == SETUP
    assert [*events] == EVENTS


FIRST = '{"version": 1, "promise": "fsync"}'


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], "line 1 is not JSON"),
        (["[]"], "line 1 is not a JSON object"),
        (['{"version": 2, "promise": "fsync"}'], "line 1 is not the setup of a history of version 1"),
        (['{"version": 1}'], "line 1 is no setup"),
        (['{"version": 1, "promise": "fsync", "brokers": "many"}'], "line 1 is no setup"),
        ([FIRST, '{"kind": "ok", "ti'], "line 2 is not JSON"),
        ([FIRST, '{"kind": "end", "time": 1}', "7"], "line 3 is not a JSON object"),
        ([FIRST, '{"kind": "sent", "time": 1}'], "line 2: an event has a time, and its kind is one of calm, "),
        ([FIRST, '{"kind": "ok"}'], "line 2: an event has a time"),
        ([FIRST, '{"kind": "ok", "time": "1"}'], "line 2: an event has no time '1'"),
        ([FIRST, '{"kind": "ok", "time": 1, "colour": 2}'], "line 2: an event has no colour 2"),
    ],
)
def test_a_line_that_is_none_is_named(lines: list[str], text: str):
    with pytest.raises(HistoryError, match=text):
        [*read_history(lines)[1]]
