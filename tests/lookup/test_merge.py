from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqkit.lookup.merge import MergedResponses

LOOKUPDS = st.sampled_from(["a", "b", "c"])
ENTRIES = st.dictionaries(st.sampled_from("uvwxyz"), st.integers())


def test_responses_are_merged():
    responses: MergedResponses[int] = MergedResponses()
    assert responses.merged() == {}
    responses.record("a", {"x": 1})
    responses.record("b", {"x": 2, "y": 3})
    assert responses.merged() == {"x": 1, "y": 3}


def test_entry_stays_while_one_response_has_it():
    responses: MergedResponses[int] = MergedResponses()
    responses.record("a", {"x": 1})
    responses.record("b", {"x": 2})
    responses.record("a", {})
    assert responses.merged() == {"x": 2}
    responses.record("b", {})
    assert responses.merged() == {}


def test_forget_removes_response():
    responses: MergedResponses[int] = MergedResponses()
    responses.record("a", {"x": 1})
    responses.forget("a")
    responses.forget("never asked")
    assert responses.merged() == {}


class MergeMachine(RuleBasedStateMachine):
    """An entry exists exactly if the last response of an nsqlookupd that was not forgotten has it."""

    def __init__(self):
        super().__init__()
        self.responses: MergedResponses[int] = MergedResponses()
        self.last: dict[str, dict[str, int]] = {}

    @rule(lookupd=LOOKUPDS, entries=ENTRIES)
    def answer(self, lookupd, entries):
        before = set(self.responses.merged())
        self.responses.record(lookupd, entries)
        self.last[lookupd] = entries
        listed_by_others = {key for name, listing in self.last.items() if name != lookupd for key in listing}
        after = set(self.responses.merged())
        assert set(entries) <= after, "what an answer lists is there"
        assert before - after == before - set(entries) - listed_by_others, "nothing goes that others list"

    @rule(lookupd=LOOKUPDS)
    def forget(self, lookupd):
        self.responses.forget(lookupd)
        self.last.pop(lookupd, None)

    @invariant()
    def the_union_is_that_of_the_last_answers(self):
        assert set(self.responses.merged()) == {key for listing in self.last.values() for key in listing}
        assert all(
            any(listing.get(key) == entry for listing in self.last.values())
            for key, entry in self.responses.merged().items()
        )


TestMerge = MergeMachine.TestCase
