"""Offsets in checkpoints, and those that do not belong to the query."""

from __future__ import annotations

import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.stream_offset import Offset, mode_offset, read_mode_offset, read_wal_offset, wal_offset


def test_an_offset_names_the_wal_and_the_next_batch() -> None:
    assert wal_offset("w", 3) == {"wal": "w", "n": 3}
    assert read_wal_offset({"wal": "w", "n": 3}) == ("w", 3)


def test_an_offset_without_a_wal_names_the_mode() -> None:
    assert mode_offset("commit", 3) == {"ackMode": "commit", "n": 3}
    assert read_mode_offset("commit", {"ackMode": "commit", "n": 3}) == 3


@pytest.mark.parametrize(
    ("offset", "sentence"),
    [
        ({"ackMode": "receive", "n": 1}, "the checkpoint is of a query with ackMode 'receive'"),
        ({"topic": {"0": 3}}, "the checkpoint is of another source"),
        ({"wal": 3, "n": 1}, "the checkpoint is of a query with ackMode 'wal'"),
    ],
    ids=["mode", "source", "damaged"],
)
def test_the_checkpoint_of_another_query_is_refused_by_wal(offset: Offset, sentence: str) -> None:
    with pytest.raises(OptionError, match=f"ackMode is 'wal', but {sentence}, its offset is "):
        read_wal_offset(offset)


def test_the_checkpoint_of_another_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="ackMode is 'commit', but the checkpoint is of a query with ackMode 'wal'"):
        read_mode_offset("commit", wal_offset("w", 1))
