from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.testing.link.items import Connection, Direction, Item
from nsqkit.testing.link.recording import FORMAT, VERSION, Record, Recording, load_recording, pack, save_recording
from nsqkit.wire.commands import MAGIC_V2, NOP, encode_publish
from nsqkit.wire.frames import OK_FRAME
from nsqkit.wire.messages import encode_message

HEAD = json.dumps({"format": FORMAT, "version": VERSION}) + "\n"

CONNECTIONS = [Connection("1:2", "worker", "t", "c"), Connection("1:2")]
FAULTY = st.builds(Item, st.text(), st.binary(), st.text(min_size=1))
COMMANDS = [Item("PUB", encode_publish(b"t", b"x")), Item("NOP", NOP), Item("ANY", b"ANY word\n")]
FRAMES = [Item("OK", OK_FRAME), Item("MESSAGE", encode_message(1, 1, b"0" * 16, b"x"))]
ITEMS = {
    Direction.TO_BROKER: st.just(Item("MAGIC", MAGIC_V2)) | st.sampled_from(COMMANDS) | FAULTY,
    Direction.TO_CLIENT: st.sampled_from(FRAMES) | FAULTY,
}


@st.composite
def records(draw: st.DrawFn) -> Record:
    direction = draw(st.sampled_from(Direction))
    items = draw(st.lists(ITEMS[direction], min_size=1, max_size=4))
    if Item("MAGIC", MAGIC_V2) in items[1:]:
        items = [Item("MAGIC", MAGIC_V2)]
    items += [Item("BYTES", OK_FRAME)] * draw(st.integers(0, 1))
    record = Record(draw(st.integers()), draw(st.sampled_from(CONNECTIONS)), direction, pack(items))
    assert record.items == items
    return record


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


@given(st.lists(records(), max_size=5), st.integers(0), st.integers(0))
def test_a_file_has_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, saved: list[Record], start_ns: int, dropped_count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "journal.jsonl"
    recording = Recording(saved, start_ns, dropped_count)
    save_recording(recording, path)
    loaded = load_recording(path)
    assert values(loaded) == values(recording)
    assert (loaded.start_ns, loaded.dropped_count) == (start_ns, dropped_count)


def test_plain_items_are_kept_as_bytes_and_others_as_they_are() -> None:
    assert pack(COMMANDS) == b"".join(item.data for item in COMMANDS)
    for items in ([Item("MAGIC", MAGIC_V2)], [Item("BYTES", b"x")], [Item("NOP", NOP, "drop")]):
        assert pack(items) is items
        assert Record(1, CONNECTIONS[0], Direction.TO_BROKER, items).size > len(items[0].data)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1 is not a JSON object"),
        ("[]\n", "line 1 is not a JSON object"),
        ('{"version": 1}\n', "must have the format"),
        (HEAD.replace("1}", "2}"), "is a journal of version 2; this nsqkit reads 1 only"),
        (HEAD + "no JSON\n", "line 2 is not a JSON object"),
        (HEAD + '{"items": []}\n', "line 2 is wrong"),
        (HEAD + '{"connection": 0, "address": "a"}\n{"items": []}\n', "line 3 is wrong"),
        (HEAD + '{"connection": 0, "colour": 1}\n', "line 2 is wrong"),
        (HEAD + '{"connection": 0, "address": "a"}\n{"items": [["OK", "?"]]}\n', "line 3 is wrong"),
    ],
    ids=["empty", "list", "format", "version", "line", "record", "no_items", "field", "item"],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(OptionError, match=error) as info:
        load_recording(path)
    assert str(path) in str(info.value)
