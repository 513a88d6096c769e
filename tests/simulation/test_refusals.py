"""Which messages of a refused publish a broker may deliver."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.disk.records import to_records
from nsqkit.wire.messages import encode_message
from tests.simulation.broken import Broken
from tests.simulation.promises import Publish
from tests.simulation.refusals import Refusals

IN_TOPIC = {"t.diskqueue.000002.dat": to_records([encode_message(1, 1, b"0" * 16, b"body")])}


def refused(put: dict[str, bytes], left: dict[str, bytes]) -> Refusals:
    """Return the refusal of a message: the files after it was put, and those at the error."""
    publish, refusals = Publish(b"t", [b"body"], set()), Refusals()
    refusals.put([publish], put)
    refusals.refuse(publish, [], left)
    return refusals


def test_a_message_that_no_file_has_is_not_delivered():
    with pytest.raises(Broken, match="b'body' was refused"):
        refused({}, {}).delivered(b"t", b"a", b"body")


@pytest.mark.parametrize("left", [IN_TOPIC, {}], ids=["stays", "is passed on before the error"])
def test_a_message_that_stays_in_a_complete_file_may_be_delivered(left: dict[str, bytes]):
    refused(IN_TOPIC, left).delivered(b"t", b"a", b"body")


def test_a_message_in_a_file_of_one_channel_is_not_delivered_by_others():
    in_channel = {"t:a.diskqueue.000002.dat": IN_TOPIC["t.diskqueue.000002.dat"]}
    refusals = refused(in_channel, {})
    refusals.delivered(b"t", b"a", b"body")
    with pytest.raises(Broken, match="to b'b'"):
        refusals.delivered(b"t", b"b", b"body")
