from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.testing.link.items import Connection, Direction, Item
from nsqkit.testing.link.recording import FORMAT, VERSION, Record, Recording, load_recording, save_recording

HEAD = json.dumps({"format": FORMAT, "version": VERSION}) + "\n"

CONNECTIONS = [Connection("1:2", "worker", "t", "c"), Connection("1:2")]
RECORDS = st.builds(
    Record,
    at_ns=st.integers(),
    connection=st.sampled_from(CONNECTIONS),
    direction=st.sampled_from(Direction),
    items=st.lists(st.builds(Item, st.text(), st.binary(), st.text()), max_size=3),
)


def values(recording: Recording) -> list[object]:
    connections = [record.connection for record in recording.records]
    return [
        (
            record.at_ns,
            record.direction,
            record.items,
            connections.index(record.connection),
            record.connection.client_id,
        )
        for record in recording.records
    ]


@given(st.lists(RECORDS, max_size=5), st.integers(0), st.integers(0))
def test_a_file_has_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], start_ns: int, dropped_count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "journal.jsonl"
    recording = Recording(records, start_ns, dropped_count)
    save_recording(recording, path)
    loaded = load_recording(path)
    assert values(loaded) == values(recording)
    assert (loaded.start_ns, loaded.dropped_count) == (start_ns, dropped_count)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1 is not a JSON object"),
        ("[]\n", "line 1 is not a JSON object"),
        ('{"version": 1}\n', "must have the format"),
        (HEAD.replace("1}", "2}"), "is a journal of version 2; this nsqkit reads 1 only"),
        (HEAD + "no JSON\n", "line 2 is not a JSON object"),
        (HEAD + '{"items": []}\n', "line 2 is wrong"),
        (HEAD + '{"connection": 0, "colour": 1}\n', "line 2 is wrong"),
        (HEAD + '{"connection": 0, "address": "a"}\n{"items": [["OK", "?"]]}\n', "line 3 is wrong"),
    ],
    ids=["empty", "list", "format", "version", "line", "record", "field", "item"],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(OptionError, match=error) as info:
        load_recording(path)
    assert str(path) in str(info.value)
