"""Things that wait to be acted on."""

from __future__ import annotations

from nsqkit.broker.core.pending import Changes, Pending


def test_things_are_taken_once_in_the_order_in_which_they_were_recorded():
    pending: Pending[str] = Pending()
    for name in ("b", "a", "b", "c"):
        pending[name] = None
    assert pending.take() == ["b", "a", "c"]
    assert pending.take() == []


def test_thing_recorded_after_a_take_is_taken_by_the_next():
    pending: Pending[str] = Pending()
    pending["a"] = None
    taken = pending.take()
    pending["a"] = None
    assert (taken, pending.take()) == (["a"], ["a"])


def test_revision_goes_up_with_each_change():
    changes: Changes[str] = Changes()
    changes.raise_revision()
    changes.raise_revision()
    assert (changes.revision, changes.has_news) == (2, True)
