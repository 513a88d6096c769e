"""The slot log: each transition, and a model in which attempts of many tasks interleave with faults."""

from __future__ import annotations

import os
import random
from collections import Counter

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot, Slot
from nsqkit.spark.slots.slot_log import (
    FinishDuplicates,
    FinishSlot,
    LookUp,
    PutSeal,
    PutSlot,
    ReadLog,
    Receive,
    Replay,
    ReplaySlot,
    Requeue,
    SlotLog,
    Touch,
)
from tests.spark.slots.model import Faults, Outcome, World

INTERLEAVINGS = int(os.environ.get("NSQKIT_SLOT_LOG_INTERLEAVINGS", "1000"))
"""The runs of the model, over all scenarios; the whole test of the protocol is 10,000 and more."""

A, B, C = (MessageKey("n:1", "t", b"%016d" % number) for number in range(3))
DATA = DataSlot((A, B), b"rows")

SCENARIOS = {
    "kills": Faults(kills=True),
    "kills and speculation": Faults(kills=True, speculation=True),
    "broken connections and speculation": Faults(broken_connections=True, speculation=True),
    "kills and stalls": Faults(kills=True, stalls=True, speculation=True),
    "broken connections and stalls": Faults(broken_connections=True, stalls=True, speculation=True),
}


def receiving() -> SlotLog:
    log = SlotLog()
    assert log.start() == [ReadLog()]
    assert log.log_read([]) == [Receive()]
    return log


def stored(*keys: MessageKey) -> SlotLog:
    log = receiving()
    log.receive_chunk(keys, [])
    log.slot_put(stored=True)
    return log


def finished(*keys: MessageKey) -> SlotLog:
    log = stored(*keys)
    assert log.slot_finished(failed=[], ambiguous=False) == [Receive()]
    return log


def test_a_chunk_is_stored_before_it_is_finished() -> None:
    log = receiving()
    assert log.receive_chunk([A, B], []) == [PutSlot(0, (A, B), None)]
    assert log.slot_put(stored=True) == [FinishSlot(0, (A, B))]


def test_an_outcome_without_failures_is_stored_with_the_next_chunk() -> None:
    log = finished(A, B)
    assert log.receive_chunk([C], []) == [PutSlot(1, (C,), FinOutcome())]
    assert log.counts == RowCounts(2)


def test_an_outcome_with_a_failure_is_stored_at_once() -> None:
    log = stored(A, B)
    outcome = FinOutcome(frozenset([B]))
    assert log.slot_finished(failed=[B], ambiguous=False) == [PutSlot(1, (), outcome)]
    assert log.slot_put(stored=True) == [Receive()]
    assert log.receive_chunk([C], []) == [PutSlot(2, (C,), FinOutcome())]
    assert log.counts == RowCounts(1, 1)


def test_an_unknown_outcome_is_stored_at_once() -> None:
    assert stored(A).slot_finished(failed=[], ambiguous=True) == [PutSlot(1, (), FinOutcome(ambiguous=True))]


def test_a_redelivered_message_of_the_last_slot_is_a_duplicate() -> None:
    """The outcome is not stored before the next put; nsqd may deliver the message after a restart."""
    log = finished(A, B)
    assert log.receive_chunk([A, C], [A]) == [LookUp((A,))]
    assert log.looked_up({A: Presence.OPEN}) == [FinishDuplicates((A,)), PutSlot(1, (C,), FinOutcome())]


def test_the_log_ends_with_a_seal_and_is_read_once_more() -> None:
    log = receiving()
    assert log.seal() == [PutSeal(0, SealSlot())]
    assert log.seal_put(stored=True) == [ReadLog()]
    assert log.log_read([SealSlot()]) == [Replay(())]


def test_the_seal_has_the_last_outcome_and_the_counts() -> None:
    seal = SealSlot(FinOutcome(), RowCounts(2))
    assert finished(A, B).seal() == [PutSeal(1, seal)]


def test_only_messages_delivered_before_are_looked_up() -> None:
    log = receiving()
    assert log.receive_chunk([A, B, C], [A, C]) == [LookUp((A, C))]
    presence = {A: Presence.INCLUDED, C: Presence.OPEN}
    assert log.looked_up(presence) == [FinishDuplicates((A,)), Requeue((C,), True), PutSlot(0, (B,), None)]
    assert (log.duplicate_count, log.requeued_count) == (1, 1)


def test_a_chunk_of_duplicates_makes_no_slot() -> None:
    log = receiving()
    log.receive_chunk([A], [A])
    assert log.looked_up({A: Presence.INCLUDED}) == [FinishDuplicates((A,)), Receive()]


def test_a_message_that_arrived_twice_has_one_row() -> None:
    assert receiving().receive_chunk([A, B, A], [A]) == [LookUp((A,))]
    log = receiving()
    log.receive_chunk([A, B, A], [A])
    assert log.looked_up({}) == [PutSlot(0, (A, B), None)]


def test_an_old_chunk_is_touched_and_loses_what_timed_out() -> None:
    log = receiving()
    assert log.receive_chunk([A, B], [], touch=True) == [Touch((A, B))]
    assert log.touched([A]) == [PutSlot(0, (B,), None)]


def test_an_owner_that_loses_its_put_requeues_and_replays() -> None:
    log = finished(A, B)
    log.receive_chunk([C], [])
    assert log.slot_put(stored=False) == [Requeue((C,), False), ReadLog()]
    seal = SealSlot(FinOutcome(ambiguous=True), RowCounts(2, 0, 1))
    assert log.log_read([DATA, seal]) == [Replay((ReplaySlot(0, frozenset()),))]


def test_an_owner_whose_messages_another_attempt_has_puts_an_empty_slot() -> None:
    log = receiving()
    assert log.receive_chunk([A], [A]) == [LookUp((A,))]
    assert log.looked_up({A: Presence.OPEN}) == [Requeue((A,), delayed=True), PutSlot(0, (), None)]
    assert log.slot_put(stored=False) == [ReadLog()]


def test_an_owner_that_loses_its_outcome_replays() -> None:
    log = stored(A, B)
    log.slot_finished(failed=[A], ambiguous=False)
    assert log.slot_put(stored=False) == [ReadLog()]


def test_a_second_attempt_seals_and_makes_the_last_slot_ambiguous() -> None:
    log = SlotLog()
    log.start()
    second = attrs.evolve(DATA, outcome=FinOutcome(frozenset([A])))
    seal = SealSlot(FinOutcome(ambiguous=True), RowCounts(3, 1, 1))
    assert log.log_read([DATA, second]) == [PutSeal(2, seal)]
    assert log.seal_put(stored=True) == [ReadLog()]
    replay = Replay((ReplaySlot(0, frozenset([A])), ReplaySlot(1, frozenset())))
    assert log.log_read([DATA, second, seal]) == [replay]


def test_a_slot_without_rows_is_not_ambiguous_and_not_replayed() -> None:
    log = SlotLog()
    log.start()
    outcome = FinOutcome(frozenset([A]))
    seal = SealSlot(FinOutcome(), RowCounts(1, 1))
    assert log.log_read([DATA, DataSlot((), b"", outcome)]) == [PutSeal(2, seal)]
    log.seal_put(stored=False)
    assert log.log_read([DATA, DataSlot((), b"", outcome), seal]) == [Replay((ReplaySlot(0, frozenset([A])),))]


@pytest.mark.parametrize(
    ("slots", "sentence"),
    [
        ([SealSlot(), SealSlot(FinOutcome())], "the log has 2 slots, and the seal is not its only last one"),
        ([DATA, SealSlot()], "the log has 2 slots, and one lacks the outcome of the slot before it"),
    ],
)
def test_slots_that_are_no_log_are_an_error(slots: list[Slot], sentence: str) -> None:
    log = SlotLog()
    log.start()
    with pytest.raises(ProtocolError, match=sentence):
        log.log_read(slots)


def test_a_result_that_no_action_asked_for_is_an_error() -> None:
    with pytest.raises(AssertionError, match="waits for receive_chunk or seal, not for slot_put"):
        receiving().slot_put(stored=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_loses_a_message(name: str) -> None:
    totals = Counter[str]()

    @settings(max_examples=INTERLEAVINGS // len(SCENARIOS), database=None)
    @given(st.integers(1, 24), st.binary(max_size=160), st.integers(0, 2**32))
    def check(message_count: int, head: bytes, seed: int) -> None:
        # Hypothesis shrinks the head; the seed's steps after it keep a world long, which costs Hypothesis nothing.
        outcome = run(SCENARIOS[name], message_count, head, seed)
        totals.update(outcome.events)
        totals.update(runs=1, messages=message_count, lost=outcome.lost_count, duplicated=outcome.duplicate_count)
        assert outcome.lost_count == outcome.unequal_count == 0, outcome
        assert outcome.duplicate_count == 0 or outcome.events["stall"], outcome

    check()
    print(f"\n{name}: {dict(totals)}")


def test_the_model_finds_a_log_without_look_up() -> None:
    outcomes = [run(SCENARIOS["kills"], 24, b"", seed, look_up=False) for seed in range(100)]
    assert sum(outcome.duplicate_count for outcome in outcomes) > 0


def run(faults: Faults, message_count: int, head: bytes, seed: int, *, look_up: bool = True) -> Outcome:
    tail = random.Random(seed).randbytes(250)
    return World(message_count, faults, head + tail, look_up=look_up).run()
