"""Histories of a model of a broker pass the checker; with one event taken out or added they do not."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jepsen.checker import check
from tests.jepsen.history import Event, HistoryError, Setup

SETUP = Setup("fsync", brokers=1, channels=("a", "b"))
RDY = 5


@attrs.define(eq=False)
class Copy:
    """A message in a channel of the model."""

    body: str
    attempt: int = 0
    ready_at: float = 0.0
    connection: int = -1  # that has it in flight, until ``ready_at``


class Model:
    """A broker with two channels that keeps every promise, and its clients."""

    def __init__(self, seed: int) -> None:
        self.events: list[Event] = []
        self.random = Random(seed)
        self.time = 0.0
        self.life = 0
        self.messages = 0
        self.connections: dict[int, str] = {}
        self.connected = 0
        self.finishes: dict[int, list[int]] = {}
        self.queues: dict[str, list[Copy]] = {"a": [], "b": []}
        self.up = True

    def record(self, kind: str, **fields) -> None:
        self.events.append(Event(kind, self.time, **fields))

    def run(self, steps: int) -> list[Event]:
        for _ in range(steps):
            self.time += self.random.choice([0.01, 0.1, 1.0])
            step = self.random.choice(
                [self.publish, self.publish, self.subscribe, self.deliver, self.deliver, self.fault]
            )
            step()
        self.record("calm")
        if not self.up:
            self.fault()
        for _ in self.queues:
            self.subscribe()
        while any(self.queues.values()):
            self.time += 1
            self.deliver(drain=True)
        self.record("end")
        return self.events

    def publish(self) -> None:
        self.messages += 1
        body = f"m{self.messages}"
        self.record("invoke", broker=0, body=body)
        outcome = self.random.choice(["ok", "ok", "info", "fail"]) if self.up else "info"
        if outcome == "ok" or (outcome == "info" and self.up and self.random.random() < 0.5):
            for queue in self.queues.values():
                queue.append(Copy(body))
        self.record(outcome, body=body)

    def subscribe(self) -> None:
        if self.up:
            self.connected += 1
            channel = self.connections[self.connected] = "ab"[self.connected % 2]
            self.finishes[self.connected] = [0, 0]  # sent, confirmed
            self.record("subscribe", broker=0, connection=self.connected, channel=channel, life=self.life, count=RDY)

    def deliver(self, *, drain: bool = False) -> None:
        """Deliver to each connection what it can get, and have some of it answered."""
        for connection, channel in self.connections.items():
            queue = self.queues[channel]
            held = [copy for copy in queue if copy.connection == connection and copy.ready_at > self.time]
            ready = [copy for copy in queue if copy.ready_at <= self.time]
            for copy in ready[: RDY - len(held)]:
                copy.attempt += 1
                copy.connection, copy.ready_at = connection, self.time + SETUP.msg_timeout
                fields = {"body": copy.body, "id": f"id {copy.body}", "attempt": copy.attempt}
                self.record("deliver", connection=connection, **fields)
                self.answer(connection, copy, 0 if drain else self.random.randrange(4))

    def answer(self, connection: int, copy: Copy, choice: int) -> None:
        finishes = self.finishes[connection]
        if choice < 2:
            self.queues[self.connections[connection]].remove(copy)
            self.record("finish", connection=connection, id=f"id {copy.body}")
            finishes[0] += 1
            if choice == 0:
                finishes[1] = finishes[0]
                self.record("confirm", connection=connection, count=finishes[1])
        elif choice == 2:
            self.record("requeue", connection=connection, id=f"id {copy.body}")
            copy.ready_at = self.time

    def fault(self) -> None:
        """Kill the broker, or start it again."""
        if self.up:
            self.record("fault", broker=0, fault="kill")
            self.connections.clear()
        else:
            self.life += 1
            self.record("heal", broker=0, fault="kill")
            for queue in self.queues.values():
                for copy in queue:
                    copy.attempt, copy.connection, copy.ready_at = 0, -1, 0.0
        self.up = not self.up


histories = st.builds(lambda seed, steps: Model(seed).run(steps), st.integers(0, 1 << 32), st.integers(0, 60))


def is_refused(events: list[Event]) -> bool:
    try:
        return bool(check(SETUP, events).broken)
    except HistoryError:
        return True


@given(histories)
def test_history_of_the_model_passes(events: list[Event]):
    report = check(SETUP, events)
    assert not report.broken, report.table()


@given(histories, st.data())
def test_history_without_a_needed_event_is_refused(events: list[Event], data: st.DataObject):
    acknowledged = {event.body for event in events if event.kind == "ok"}
    needed = [
        number
        for number, event in enumerate(events)
        if event.kind in {"invoke", "end"}
        or (event.kind == "subscribe" and any(e.connection == event.connection for e in events[number + 1 :]))
        or (event.kind == "deliver" and is_finished_at_once(number, events))
        or (event.kind == "finish" and event.id.removeprefix("id ") in acknowledged)
    ]
    dropped = data.draw(st.sampled_from(needed))
    assert is_refused(events[:dropped] + events[dropped + 1 :])


def is_finished_at_once(number: int, events: list[Event]) -> bool:
    """Return whether this delivery is the first of its message on its connection, and a FIN the next event of both."""
    delivery = events[number]
    ours = [n for n, e in enumerate(events) if (e.connection, e.id) == (delivery.connection, delivery.id)]
    return ours[0] == number and len(ours) > 1 and events[ours[1]].kind == "finish"


FORGED: dict[str, dict[str, Any]] = {
    "never published": {"body": "another", "id": "another"},
    "one attempt twice": {},
    "the id of another": {"body": "another"},
}


@pytest.mark.parametrize("name", FORGED)
@given(events=histories, data=st.data())
def test_history_with_a_forged_delivery_is_refused(name: str, events: list[Event], data: st.DataObject):
    numbers = [number for number, event in enumerate(events) if event.kind == "deliver"]
    if numbers:
        number = data.draw(st.sampled_from(numbers))
        forged = attrs.evolve(events[number], **FORGED[name])
        assert is_refused([*events[: number + 1], forged, *events[number + 1 :]])


@given(events=histories, data=st.data())
def test_history_with_a_forged_acknowledgement_is_refused(events: list[Event], data: st.DataObject):
    delivered = {event.body for event in events if event.kind == "deliver"}
    numbers = [n for n, event in enumerate(events) if event.kind in {"info", "fail"} and event.body not in delivered]
    if numbers:
        number = data.draw(st.sampled_from(numbers))
        assert is_refused([*events[:number], attrs.evolve(events[number], kind="ok"), *events[number + 1 :]])


@given(events=histories, data=st.data())
def test_history_with_a_delivery_after_a_confirmed_fin_is_refused(events: list[Event], data: st.DataObject):
    numbers = [
        number
        for number in range(2, len(events))
        if [event.kind for event in events[number - 2 : number + 1]] == ["deliver", "finish", "confirm"]
    ]
    if numbers:
        number = data.draw(st.sampled_from(numbers))
        first = events[number - 2]
        again = attrs.evolve(first, attempt=first.attempt + 1, time=events[number].time)
        assert is_refused([*events[: number + 1], again, *events[number + 1 :]])
