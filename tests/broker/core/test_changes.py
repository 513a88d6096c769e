"""The changes in the topics of a broker."""

from __future__ import annotations

from nsqkit.broker.core.changes import Changes


def test_revision_goes_up_with_each_change():
    changes: Changes[str] = Changes()
    changes.raise_revision()
    changes.raise_revision()
    assert (changes.revision, changes.has_news) == (2, True)
