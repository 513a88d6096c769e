"""Needs pyarrow: run by `tox -e spark`."""

from __future__ import annotations

import mmap
import pickle
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer import Message
from nsqkit.spark.schema import (
    DDL,
    KEY_COLUMNS,
    MessageRow,
    RowNumbers,
    arrow_schema,
    encode_messages,
    encode_payload,
    message_row,
    message_rows,
    record_batches,
)
from nsqkit.spark.slots.records import MessageKey
from tests.consumer.driven import DrivenConsumer
from tests.peers import encode_numbered

ROW = MessageRow("127.0.0.1:4150", "orders", "0123456789abcdef", 1_700_000_000_000_000_999, 1, b"one")
OTHER = MessageRow("127.0.0.1:4250", "returns", "0123456789abcdef", 1_700_000_000_000_001_000, 3, b"\xff")


def key_of(row: MessageRow) -> MessageKey:
    return MessageKey(row.nsqd_address, row.topic, row.id.encode())


def read(rows: list[MessageRow], excluded: Collection[MessageKey] = (), **place: int) -> list[dict]:
    numbers = RowNumbers(**{"batch": 0, "partition": 0, **place})
    payload = encode_payload(rows, "billing")
    batches = record_batches(payload, [key_of(row) for row in rows], excluded, numbers)
    return [fields for batch in batches for fields in batch.to_pylist()]


def received(*links: tuple[str, list[int]]) -> list[Message]:
    """Return messages of one consumer, by nsqd address and message number."""
    consumer = DrivenConsumer(max_in_flight=10)
    messages: list[Message] = []
    for address, numbers in links:
        link = consumer.connect(address)
        link.send(encode_numbered(*numbers))
        messages += link.session.held.values()
    return messages


def test_the_key_has_the_values_of_the_key_columns():
    names = {"nsqdAddress": "nsqd_address"}
    assert ROW.key == tuple(getattr(ROW, names.get(name, name)) for name in KEY_COLUMNS)
    assert set(KEY_COLUMNS) <= set(arrow_schema().names)
    assert ROW.key == ("127.0.0.1:4150", "orders", "0123456789abcdef")


def test_a_row_pickles():
    assert pickle.loads(pickle.dumps(ROW)) == ROW


def test_a_payload_has_the_columns_of_the_schema():
    first, second = read([ROW, OTHER])
    assert first.pop("timestamp").isoformat() == "2023-11-14T22:13:20+00:00"
    assert second.pop("timestamp").isoformat() == "2023-11-14T22:13:20.000001+00:00"
    assert first == {
        "body": b"one",
        "id": "0123456789abcdef",
        "timestampNs": 1_700_000_000_000_000_999,
        "attempts": 1,
        "topic": "orders",
        "channel": "billing",
        "nsqdAddress": "127.0.0.1:4150",
        "batchSeq": 0,
    }
    assert (second["topic"], second["nsqdAddress"], second["attempts"]) == ("returns", "127.0.0.1:4250", 3)


def test_batches_have_the_schema_exactly():
    (batch,) = record_batches(encode_payload([ROW], "c"), [key_of(ROW)], (), RowNumbers(0, 0))
    assert batch.schema.equals(arrow_schema())
    batch.validate(full=True)


def test_the_ddl_has_the_names_of_the_arrow_schema():
    assert [column.split()[0] for column in DDL.split(", ")] == arrow_schema().names


def test_batch_seq_has_batch_partition_and_row():
    rows = read([ROW, OTHER], batch=3, partition=5, next_row=7)
    assert [row["batchSeq"] for row in rows] == [(3 << 38) + (5 << 28) + 7, (3 << 38) + (5 << 28) + 8]


@given(st.lists(st.integers(1, 200), max_size=20))
def test_row_numbers_go_on_from_slot_to_slot(counts: list[int]):
    numbers = RowNumbers(3, 5)
    taken = [value for count in counts for value in numbers.take(count).to_pylist()]
    first = (3 << 38) + (5 << 28)
    assert taken == list(range(first, first + sum(counts)))


def test_excluded_rows_are_left_out_and_not_numbered():
    rows = read([ROW, OTHER], {key_of(ROW)})
    assert [(row["body"], row["batchSeq"]) for row in rows] == [(b"\xff", 0)]
    assert read([ROW], {key_of(ROW)}) == []


def test_messages_with_one_id_from_two_nsqds_are_two_rows():
    """Pitfall 11: an id is unique in one topic of one nsqd."""
    other = OTHER._replace(topic=ROW.topic)
    assert read([ROW, other], {key_of(other)})[0]["body"] == ROW.body


def test_a_batch_refers_to_the_memory_of_a_mapped_slot(tmp_path: Path):
    import pyarrow as pa

    path = tmp_path / "slot"
    path.write_bytes(b"head" + encode_payload([ROW._replace(body=bytes(1 << 20))], "c"))
    with path.open("rb") as file:
        payload = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[4:]
    before = pa.total_allocated_bytes()
    (batch,) = record_batches(payload, [key_of(ROW)], (), RowNumbers(0, 0))
    assert pa.total_allocated_bytes() - before < 1 << 12
    assert batch["body"][0].as_py() == bytes(1 << 20)


def test_messages_are_encoded_as_their_rows():
    messages = received(("a:1", [1, 2]), ("b:2", [1]))
    assert encode_messages(messages) == encode_payload([message_row(message) for message in messages], "c")


def test_an_id_that_is_no_text_is_escaped():
    (message,) = received(("a:1", [1]))
    message.id = b"\xff" * 16
    assert message_row(message).id == "\\xff" * 16
    assert encode_messages([message]) == encode_payload([message_row(message)], "c")


rows_of_any_kind = st.builds(
    MessageRow,
    st.text(max_size=5),
    st.text(max_size=5),
    st.text(st.sampled_from("0123456789abcdef"), min_size=16, max_size=16),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 65_535),
    st.binary(max_size=20),
)


@given(st.lists(rows_of_any_kind, min_size=1, max_size=20), st.data())
def test_a_payload_gives_its_rows_without_the_excluded_ones(rows: list[MessageRow], data: st.DataObject):
    excluded = data.draw(st.sets(st.sampled_from([key_of(row) for row in rows])))
    expected = [(row.body, row.id, row.timestamp_ns, row.attempts) for row in rows if key_of(row) not in excluded]
    got = read(rows, excluded)
    assert [(row["body"], row["id"], row["timestampNs"], row["attempts"]) for row in got] == expected
    assert [row["batchSeq"] for row in got] == list(range(len(expected)))


def test_a_batch_is_read_as_messages():
    rows = [ROW, OTHER]
    (batch,) = record_batches(encode_payload(rows, "billing"), [key_of(row) for row in rows], (), RowNumbers(0, 0))
    assert list(message_rows(batch)) == rows


def test_a_worker_does_not_import_pandas() -> None:
    pytest.importorskip("pandas")
    program = """
import sys
from nsqkit.spark.schema import MessageRow, RowNumbers, encode_payload, record_batches
from nsqkit.spark.read_task import row_keys
rows = [MessageRow("127.0.0.1:4150", "orders", f"{n:016x}", 1_700_000_000_000_000_000, 1, b"body") for n in range(3)]
keys = row_keys(rows)
(batch,) = record_batches(encode_payload(rows, "lake"), keys, {keys[0]}, RowNumbers(1, 2))
assert batch.num_rows == 2
assert "pandas" not in sys.modules, "pyarrow imported pandas, which takes 60 MB"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
