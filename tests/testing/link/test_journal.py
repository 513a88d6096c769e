from __future__ import annotations

from nsqkit.testing.link.items import Direction
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import Link
from nsqkit.wire.commands import MAGIC_V2, NOP


def test_journal_has_the_items_of_each_read_with_time_and_direction() -> None:
    journal = Journal()
    link = Link("client:1", journal)
    link.client_end.receive_data(MAGIC_V2 + NOP, 5)
    (record,) = journal.records
    assert (record.at_ns, record.direction, record.connection) == (5, Direction.TO_BROKER, link.connection)
    assert [item.name for item in record.items] == ["MAGIC", "NOP"]
