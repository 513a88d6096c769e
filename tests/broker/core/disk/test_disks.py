from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.broker.core.disk.disks import Content

ACTIONS = ("write", "write", "fail to sync", "rewrite", "rewrite and sync")


@given(st.lists(st.sampled_from(ACTIONS), max_size=12), st.integers(0, 1 << 30))
def test_power_cut_leaves_the_first_bytes_of_a_file_that_only_grows(actions, seed):
    """Also when a sync has failed and later bytes were written before the lost ones."""
    random = Random(seed)
    content = Content()
    for number, action in enumerate(actions, 1):
        match action:
            case "write":
                content.write(len(content.data), bytes([number]) * random.randint(1, 9))
            case "fail to sync":
                content.lose_writes()
            case _:
                content.rewrite()
                if action == "rewrite and sync":
                    content.sync()
    found = content.after_power_cut(random, zeros=False, sectors=False)
    assert content.data.startswith(found.data)
    assert found.data.startswith(content.synced)
