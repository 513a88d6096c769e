"""The slot log: each transition, and a model in which attempts of many tasks interleave with faults."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.records import DataSlot, FinRecord, MessageKey, SealSlot
from nsqkit.spark.slots.slot_log import (
    FinishDuplicates,
    FinishSlot,
    LogEntry,
    LookUp,
    PutFin,
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


def test_a_chunk_is_stored_before_it_is_finished() -> None:
    log = receiving()
    assert log.receive_chunk([A, B], []) == [PutSlot(0, (A, B))]
    assert log.slot_put(stored=True) == [FinishSlot(0, (A, B))]
    assert log.slot_finished(failed=[B], ambiguous=False) == [PutFin(0, FinRecord(frozenset([B]), row_count=1))]
    assert log.fin_put(stored=True) == [Receive()]
    assert log.receive_chunk([C], []) == [PutSlot(1, (C,))]
    assert (log.included_count, log.failed_count) == (1, 1)


def test_the_log_ends_with_a_seal_and_is_read_once_more() -> None:
    log = receiving()
    assert log.seal() == [PutSeal(0)]
    assert log.seal_put(stored=True) == [ReadLog()]
    assert log.log_read([LogEntry(SealSlot())]) == [Replay(())]


def test_only_messages_delivered_before_are_looked_up() -> None:
    log = receiving()
    assert log.receive_chunk([A, B, C], [A, C]) == [LookUp((A, C))]
    presence = {A: Presence.INCLUDED, C: Presence.OPEN}
    assert log.looked_up(presence) == [FinishDuplicates((A,)), Requeue((C,), True), PutSlot(0, (B,))]
    assert (log.duplicate_count, log.requeued_count) == (1, 1)


def test_a_chunk_of_duplicates_makes_no_slot() -> None:
    log = receiving()
    log.receive_chunk([A], [A])
    assert log.looked_up({A: Presence.INCLUDED}) == [FinishDuplicates((A,)), Receive()]


def test_a_message_that_arrived_twice_has_one_row() -> None:
    assert receiving().receive_chunk([A, B, A], [A]) == [LookUp((A,))]
    log = receiving()
    log.receive_chunk([A, B, A], [A])
    assert log.looked_up({}) == [PutSlot(0, (A, B))]


def test_an_old_chunk_is_touched_and_loses_what_timed_out() -> None:
    log = receiving()
    assert log.receive_chunk([A, B], [], touch=True) == [Touch((A, B))]
    assert log.touched([A]) == [PutSlot(0, (B,))]


def test_an_owner_that_loses_its_put_requeues_and_replays() -> None:
    log = receiving()
    log.receive_chunk([C], [])
    assert log.slot_put(stored=False) == [Requeue((C,), False), ReadLog()]
    assert log.log_read([LogEntry(DATA)]) == [PutSeal(1)]
    assert log.seal_put(stored=False) == [ReadLog()]
    fin = FinRecord(frozenset([B]))
    entries = [LogEntry(DATA, fin), LogEntry(SealSlot())]
    assert log.log_read(entries) == [Replay((ReplaySlot(0, frozenset([B])),))]


def test_an_owner_that_loses_its_fin_record_replays() -> None:
    log = receiving()
    log.receive_chunk([A], [])
    log.slot_put(stored=True)
    log.slot_finished(failed=[A], ambiguous=False)
    assert log.fin_put(stored=False) == [ReadLog()]


def test_a_second_attempt_seals_and_makes_open_slots_ambiguous() -> None:
    log = SlotLog()
    log.start()
    fin = FinRecord(frozenset([A]))
    assert log.log_read([LogEntry(DATA, fin), LogEntry(DATA)]) == [PutSeal(2)]
    assert log.seal_put(stored=True) == [ReadLog()]
    assert log.log_read([LogEntry(DATA, fin), LogEntry(DATA), LogEntry(SealSlot())]) == [
        PutFin(1, FinRecord(ambiguous=True, row_count=2))
    ]
    assert log.fin_put(stored=False) == [ReadLog()]
    entries = [LogEntry(DATA, fin), LogEntry(DATA, FinRecord()), LogEntry(SealSlot())]
    assert log.log_read(entries) == [Replay((ReplaySlot(0, frozenset([A])), ReplaySlot(1, frozenset())))]


def test_a_slot_after_the_seal_is_an_error() -> None:
    log = SlotLog()
    log.start()
    with pytest.raises(ProtocolError, match="the log has 2 slots, and the seal is not its only last one"):
        log.log_read([LogEntry(SealSlot()), LogEntry(DATA)])


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
