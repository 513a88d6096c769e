"""Stand-ins for tasks and nsqds in the tests of the producer's machines."""

from __future__ import annotations

from typing import Any

import attrs

from nsqkit.producer.linger import Linger
from nsqkit.producer.session import Answers, ProducerSession
from nsqkit.wire.frames import encode_response
from nsqkit.wire.identify import IdentifyRequest


@attrs.define(eq=False)
class FakeNsqd:
    """An nsqd, as a policy uses it."""

    address: str
    is_ready: bool = True
    outstanding_count: int = 0


def connected(linger: Linger | None = None) -> ProducerSession:
    """Return a session whose handshake is over and was sent."""
    session = ProducerSession(IdentifyRequest(), read_timeout_ns=60, max_msg_size=1000, now_ns=0, linger=linger)
    session.data_to_send()
    session.receive_data(encode_response(b"{}"), 0)
    return session


def answers(session: ProducerSession) -> dict[Any, Any]:
    """Return the answers since the last call, by token; there is at most one event, and one answer for each token."""
    events = session.events()
    assert len(events) <= 1
    found: dict[Any, Any] = {}
    for event in events:
        assert isinstance(event, Answers)
        found = {**dict.fromkeys(event.ok), **dict(event.failed)}
        assert len(found) == len(event.ok) + len(event.failed)
    return found
