from __future__ import annotations

from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import OUTBOX_SIZE_MAX, Link
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME


def test_bytes_of_each_end_leave_at_the_other() -> None:
    link = Link("client:1", Journal())
    link.client_end.receive_data(MAGIC_V2, 1)
    link.broker_end.receive_data(OK_FRAME, 2)
    assert link.broker_end.data_to_send() == MAGIC_V2
    assert link.client_end.data_to_send() == OK_FRAME
    assert not link.client_end.has_output


def test_end_of_one_side_ends_both() -> None:
    link = Link("client:1", Journal())
    link.client_end.receive_eof(1)
    assert link.client_end.ended
    assert link.broker_end.ended


def test_nothing_is_read_while_the_other_end_is_full() -> None:
    link = Link("client:1", Journal())
    link.client_end.receive_data(MAGIC_V2 + encode_publish(b"t", bytes(OUTBOX_SIZE_MAX)), 1)
    assert link.client_end.outbox_full
    link.broker_end.data_to_send()
    assert link.broker_end.has_events
    assert not link.client_end.outbox_full
