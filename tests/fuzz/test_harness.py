from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from nsqkit.wire.frames import FrameDecoder
from tests.fuzz.harness import (
    REPETITIONS,
    SIZE_MAX,
    Outcome,
    Round,
    TooMuchWork,
    both_ways,
    check,
    pack,
    slices,
    unpack,
)
from tests.kept import kept_size


def test_rounds_are_packed_and_unpacked():
    data = pack(b"one", b"two", mode=5, action=4, lengths=(1, 2, 3))
    assert unpack(data) == (b"\x01\x02\x03", 5, [Round(1, b"one"), Round(1, b"two")])


def test_every_input_can_be_unpacked():
    assert unpack(b"") == (b"\0\0\0", 0, [Round(0, b"")])


def test_a_content_is_repeated_up_to_a_limit():
    assert unpack(pack(b"ab", action=3))[2] == [Round(0, b"ab" * REPETITIONS)]
    assert unpack(pack(b"ab", action=2))[2] == [Round(0, b"ab")]
    assert [len(each.content) for each in unpack(pack(bytes(1000), b"x", action=3))[2]] == [SIZE_MAX, 0]


def test_slices_have_the_lengths_again_and_again():
    assert slices(b"abcdefgh", b"\1\3\2") == [b"a", b"bcd", b"ef", b"g", b"h"]
    assert slices(bytes(300), b"\0\1\0") == [bytes(256), b"\0", bytes(43)]
    assert slices(b"", b"\1\1\1") == []


def test_outcomes_that_depend_on_slices_fail():
    with pytest.raises(AssertionError, match="the outcome differs"):
        both_ways(pack(b"abc"), lambda mode, rounds, cut: Outcome({"pieces": cut(rounds[0].content)}))


def test_a_refused_input_may_drop_results():
    def play(mode: int, rounds: list[Round], cut: Any) -> Outcome:
        pieces = cut(rounds[0].content)
        return Outcome({"pieces": len(pieces) * [1]}, len(pieces), refused=True)

    assert both_ways(pack(b"abc"), play) > 3


def test_kept_bytes_are_counted():
    decoder = FrameDecoder()
    assert kept_size(decoder) == 0
    decoder.feed(bytes((0, 0, 0, 100)) + bytes(50))
    decoder.feed(bytes(20))
    assert kept_size(decoder) == 74
    assert kept_size(decoder, [decoder, decoder]) == 74


def _target(run: Any) -> Any:
    return SimpleNamespace(SEEDS=[], WORDS=[], CALLS_PER_UNIT=10, run=run)


# The checksum of this input selects it for counted calls.
COUNTED = b"\x00\x05"


def _call(times: int) -> int:
    for _ in range(times):
        slices(b"", b"")
    return 1


def test_work_that_grows_too_fast_fails():
    check(_target(lambda data: _call(1000)), COUNTED)
    with pytest.raises(AssertionError, match="calls for 1 units of work"):
        check(_target(lambda data: _call(60_000)), COUNTED)


def test_a_run_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr("tests.fuzz.harness.CALLS_MAX", 1000)
    with pytest.raises(TooMuchWork):
        check(_target(lambda data: _call(100_000)), COUNTED)


def test_an_internal_error_in_the_log_fails():
    def run(data: bytes) -> int:
        try:
            raise KeyError("lost")
        except KeyError:
            logging.getLogger("nsqkit.broker").exception("internal error")
        return 1

    with pytest.raises(KeyError, match="lost"):
        check(_target(run), b"")
