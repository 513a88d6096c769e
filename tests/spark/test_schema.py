from __future__ import annotations

import pickle

from nsqkit.spark.schema import KEY_COLUMNS, MessageRow

ROW = MessageRow("127.0.0.1:4150", "orders", "0123456789abcdef", 1_700_000_000_000_000_000, 1, b"one")


def test_the_key_has_the_values_of_the_key_columns():
    assert ROW.key == tuple(getattr(ROW, name) for name in KEY_COLUMNS)
    assert ROW.key == ("127.0.0.1:4150", "orders", "0123456789abcdef")


def test_a_row_pickles():
    assert pickle.loads(pickle.dumps(ROW)) == ROW
