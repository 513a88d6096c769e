from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqkit.lookup.listings import Listings

LOOKUPDS = st.sampled_from(["a", "b", "c"])
ENTRIES = st.dictionaries(st.sampled_from("uvwxyz"), st.integers())


def test_answers_are_united():
    listings: Listings[int] = Listings()
    assert listings.united() == {}
    listings.answered("a", {"x": 1})
    listings.answered("b", {"x": 2, "y": 3})
    assert listings.united() == {"x": 1, "y": 3}


def test_an_entry_stays_while_one_lists_it():
    listings: Listings[int] = Listings()
    listings.answered("a", {"x": 1})
    listings.answered("b", {"x": 2})
    listings.answered("a", {})
    assert listings.united() == {"x": 2}
    listings.answered("b", {})
    assert listings.united() == {}


def test_what_one_lists_that_is_no_longer_asked_is_forgotten():
    listings: Listings[int] = Listings()
    listings.answered("a", {"x": 1})
    listings.forget("a")
    listings.forget("never asked")
    assert listings.united() == {}


class ListingsMachine(RuleBasedStateMachine):
    """An entry is there exactly if the last answer of somebody who is still asked has it."""

    def __init__(self):
        super().__init__()
        self.listings: Listings[int] = Listings()
        self.last: dict[str, dict[str, int]] = {}

    @rule(lookupd=LOOKUPDS, entries=ENTRIES)
    def answer(self, lookupd, entries):
        before = set(self.listings.united())
        self.listings.answered(lookupd, entries)
        self.last[lookupd] = entries
        listed_by_others = {key for name, listing in self.last.items() if name != lookupd for key in listing}
        after = set(self.listings.united())
        assert set(entries) <= after, "what an answer lists is there"
        assert before - after == before - set(entries) - listed_by_others, "nothing goes that others list"

    @rule(lookupd=LOOKUPDS)
    def forget(self, lookupd):
        self.listings.forget(lookupd)
        self.last.pop(lookupd, None)

    @invariant()
    def the_union_is_that_of_the_last_answers(self):
        assert set(self.listings.united()) == {key for listing in self.last.values() for key in listing}
        assert all(
            any(listing.get(key) == entry for listing in self.last.values())
            for key, entry in self.listings.united().items()
        )


TestListings = ListingsMachine.TestCase
