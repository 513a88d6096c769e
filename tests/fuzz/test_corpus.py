"""Runs each fuzz target on the empty input, its seeds, and its stored inputs, among them those of mended bugs."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import FOLDER, NAMES, load_target, stored_inputs
from tests.fuzz.harness import check

CORPUS_SIZE_MAX = 5 << 20


@pytest.mark.parametrize("name", NAMES)
def test_target_has_no_failure(name):
    target = load_target(name)
    for data in (b"", *target.SEEDS, *stored_inputs(name)):
        try:
            check(target, data)
        except BaseException as error:
            error.add_note(f"{name}: {data[:500]!r}")
            raise


def test_stored_inputs_are_few_and_belong_to_targets():
    files = list(FOLDER.glob("*.txt"))
    assert {path.stem for path in files} <= set(NAMES)
    assert sum(path.stat().st_size for path in files) <= CORPUS_SIZE_MAX
