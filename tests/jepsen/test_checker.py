"""Histories by hand: those that break a promise are refused, for this reason and no other, and the others pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.jepsen.checker import check
from tests.jepsen.history import Event, HistoryError, Setup

END = 100.0


def publish(body: str, time: float = 0.0, *, end: str = "ok", broker: int = 0) -> list[Event]:
    return [
        Event("invoke", time, broker=broker, body=body),
        *([Event(end, time + 0.1, body=body)] if end else []),
    ]


def subscribe(connection: int, time: float = 0.0, *, broker: int = 0, life: int = 0, rdy: int = 10) -> list[Event]:
    return [Event("subscribe", time, broker=broker, connection=connection, channel="a", life=life, count=rdy)]


def deliver(connection: int, body: str, time: float, *, attempt: int = 1, message_id: str = "") -> list[Event]:
    return [Event("deliver", time, connection=connection, body=body, id=message_id or f"id {body}", attempt=attempt)]


def finish(connection: int, body: str, time: float, *, confirms: int = 0) -> list[Event]:
    """Finish a message; ``confirms`` is the number of FINs that are confirmed then."""
    sent = Event("finish", time, connection=connection, id=f"id {body}")
    confirm = Event("confirm", time, connection=connection, count=confirms)
    return [sent, confirm] if confirms else [sent]


def requeue(connection: int, body: str, time: float) -> list[Event]:
    return [Event("requeue", time, connection=connection, id=f"id {body}")]


def refuse(connection: int, body: str, time: float) -> list[Event]:
    return [Event("refuse", time, connection=connection, id=f"id {body}")]


def fault(name: str, begin: float, end: float, *, broker: int = 0) -> list[Event]:
    return [Event("fault", begin, broker=broker, fault=name), Event("heal", end, broker=broker, fault=name)]


def left(count: int, time: float = END) -> list[Event]:
    return [Event("left", time, broker=0, channel="a", count=count)]


def consumed(body: str, time: float = 1.0, *, connection: int = 1) -> list[Event]:
    return [
        *publish(body, time),
        *deliver(connection, body, time + 0.2),
        Event("finish", time + 0.3, connection=connection, id=f"id {body}"),
    ]


FINISHED_AT_5 = [*publish("m"), *subscribe(1), *deliver(1, "m", 4), *finish(1, "m", 5, confirms=1)]
WAITING_AT_A_KILL = [
    *[*publish("m"), *fault("kill", 1, 2), *subscribe(1, 2, life=1), *deliver(1, "m", 3)],
    *[*finish(1, "m", 4, confirms=1), *fault("terminate", 5, 6)],
    *[*subscribe(2, 6, life=2), *deliver(2, "m", 7), *finish(2, "m", 8)],
]

# By name: the promise, the broken rule, and the events.
BAD: dict[str, tuple[str, str, list[Event]]] = {
    "acknowledged, and never delivered": ("fsync", "lost", publish("m")),
    "delivered, and gone without a FIN": ("fsync", "lost", [*publish("m"), *subscribe(1), *deliver(1, "m", 1)]),
    "its only FIN was refused": (
        *("fsync", "lost"),
        [*publish("m"), *subscribe(1), *deliver(1, "m", 1), *finish(1, "m", 2), *refuse(1, "m", 2)],
    ),
    "lost at a kill, with fsync": ("fsync", "lost", [*publish("m"), *fault("kill", 1, 2)]),
    "lost at a kill that was before": ("nsqkit", "lost", [*fault("kill", 1, 2), *publish("m", 3)]),
    "lost at a clean stop": ("nsqd", "lost", [*publish("m"), *fault("terminate", 1, 2)]),
    "lost at a kill of another broker": ("nsqkit", "lost", [*publish("m"), *fault("kill", 1, 2, broker=1)]),
    "lost on a full disk, by nsqkit": ("nsqkit", "lost", [*publish("m"), *fault("full disk", 1, 2)]),
    "never published": ("nsqd", "unexpected", [*subscribe(1), *deliver(1, "m", 1)]),
    "refused, and delivered": ("fsync", "unexpected", [*publish("m", end="fail"), *subscribe(1), *deliver(1, "m", 1)]),
    "refused, and delivered, after the disk was full": (
        *("nsqkit", "unexpected"),
        [*fault("full disk", 0, 1), *publish("m", 2, end="fail"), *subscribe(1), *deliver(1, "m", 3)],
    ),
    "garbled on a full disk, by nsqkit": (
        *("nsqkit", "unexpected"),
        [*subscribe(1), *fault("full disk", 1, 2), *deliver(1, "half a", 3)],
    ),
    "delivered by another broker": (
        *("fsync", "unexpected"),
        [*publish("m", end="info"), *subscribe(1, broker=1), *deliver(1, "m", 1)],
    ),
    "revived again, and no second kill": (
        *("fsync", "revived"),
        [
            *[*FINISHED_AT_5, *fault("kill", 5.2, 6), *subscribe(2, 6, life=1)],
            *[*deliver(2, "m", 7), *finish(2, "m", 8, confirms=1), *deliver(2, "m", 20, attempt=2)],
        ],
    ),
    "delivered again before its timeout": (
        *("fsync", "duplicated"),
        [*publish("m"), *subscribe(1), *deliver(1, "m", 1), *deliver(1, "m", 1.5, attempt=2), *finish(1, "m", 1.6)],
    ),
    "delivered after a kill, and again in that life": (
        *("fsync", "revived"),
        [
            *[*publish("m"), *subscribe(1), *deliver(1, "m", 4), *requeue(1, "m", 5), *fault("kill", 5.2, 6)],
            *[*subscribe(2, 6, life=1), *deliver(2, "m", 7), *finish(2, "m", 8, confirms=1)],
            *deliver(2, "m", 9, attempt=2),
        ],
    ),
    "one attempt delivered twice": (
        *("fsync", "duplicated"),
        [*publish("m"), *subscribe(1), *deliver(1, "m", 1), *deliver(1, "m", 9), *finish(1, "m", 9)],
    ),
    "delivered after a confirmed FIN": ("nsqd", "revived", [*FINISHED_AT_5, *deliver(1, "m", 9, attempt=2)]),
    "delivered after a confirmed FIN and a clean stop": (
        *("nsqd", "revived"),
        [*FINISHED_AT_5, *fault("terminate", 5.1, 6), *subscribe(2, 6, life=1), *deliver(2, "m", 9)],
    ),
    "delivered though its FIN was recorded long before the kill": (
        *("fsync", "revived"),
        [*FINISHED_AT_5, *fault("kill", 50, 51), *subscribe(2, 52, life=1), *deliver(2, "m", 53)],
    ),
    "waiting, and twice on the disk of nsqkit after a kill": ("nsqkit", "revived", WAITING_AT_A_KILL),
    "more than RDY": (
        *("nsqd", "beyond RDY"),
        [
            *subscribe(1, rdy=1),
            *(event for body in "mn" for event in (*publish(body), *deliver(1, body, 1))),
            *(event for body in "mn" for event in finish(1, body, 2)),
        ],
    ),
    "left in the broker at the end": ("nsqd", "stuck", [*publish("m"), *fault("kill", 1, 2), *left(1)]),
    "without an answer, and left at the end": ("fsync", "stuck", [*publish("m", end="info"), *left(1)]),
    "two messages with one id": (
        *("nsqkit", "shared ids"),
        [
            *[*publish("m"), *publish("n"), *subscribe(1)],
            *[*deliver(1, "m", 1), *finish(1, "m", 2), *deliver(1, "n", 3, message_id="id m"), *finish(1, "m", 4)],
        ],
    ),
    "ended by itself": ("nsqd", "died", [Event("died", 1, broker=0, text="ended with status 1")]),
}

GOOD: dict[str, tuple[str, list[Event]]] = {
    "nothing": ("fsync", []),
    "published and finished": ("fsync", [*subscribe(1), *consumed("m"), *consumed("n", 2)]),
    "unknown, and never delivered": ("fsync", publish("m", end="info")),
    "unknown, and delivered": ("fsync", [*publish("m", end="info"), *subscribe(1), *deliver(1, "m", 1)]),
    "refused, and never delivered": ("fsync", publish("m", end="fail")),
    "timed out": (
        "fsync",
        [*publish("m"), *subscribe(1), *deliver(1, "m", 1), *deliver(1, "m", 4.1, attempt=2), *finish(1, "m", 5)],
    ),
    "requeued": (
        "fsync",
        [
            *[*publish("m"), *subscribe(1), *deliver(1, "m", 1), *requeue(1, "m", 1.1)],
            *[*deliver(1, "m", 1.2, attempt=2), *finish(1, "m", 5)],
        ],
    ),
    "delivered again after a kill": (
        "fsync",
        [
            *[*publish("m"), *subscribe(1), *deliver(1, "m", 1), *fault("kill", 1.1, 1.2)],
            *[*subscribe(2, 1.2, life=1), *deliver(2, "m", 1.3), *finish(2, "m", 1.4, confirms=1)],
        ],
    ),
    "sent before the process was stopped, and received after it": (
        "nsqd",
        [
            *[*subscribe(1), *publish("m"), *fault("stop", 0.1, 4), *deliver(1, "m", 4)],
            *[*deliver(1, "m", 4.1, attempt=2), *finish(1, "m", 5)],
        ],
    ),
    "its FIN was not recorded before the kill": (
        "fsync",
        [*FINISHED_AT_5, *fault("kill", 5.2, 6), *subscribe(2, 6, life=1), *deliver(2, "m", 7), *finish(2, "m", 8)],
    ),
    "finished behind an unfinished one before the kill": (
        "fsync",
        [
            *publish("old"),
            *FINISHED_AT_5,
            *[*fault("kill", 50, 51), *subscribe(2, 52, life=1), *deliver(2, "m", 53), *deliver(2, "old", 53)],
            *[*finish(2, "m", 54), *finish(2, "old", 54)],
        ],
    ),
    "recorded by no sync while the disk was full": (
        "fsync",
        [
            *[*subscribe(1), *publish("m", 1), Event("fault", 2, broker=0, fault="full disk")],
            *[*deliver(1, "m", 4), *finish(1, "m", 5, confirms=1), *fault("kill", 20, 21)],
            *[Event("heal", 22, broker=0, fault="full disk"), *subscribe(2, 23, life=1), *deliver(2, "m", 24)],
        ],
    ),
    "finished behind one that a kill before had revived": (
        "fsync",
        [
            *[*publish("old"), *subscribe(1), *deliver(1, "old", 1), *finish(1, "old", 1, confirms=1)],
            *[*fault("kill", 1.2, 2), *subscribe(2, 2, life=1), *deliver(2, "old", 3)],
            *[*publish("m", 4), *deliver(2, "m", 4), *finish(2, "m", 5, confirms=1)],
            *[*fault("kill", 50, 51), *subscribe(3, 52, life=2), *deliver(3, "old", 53), *deliver(3, "m", 53)],
        ],
    ),
    "refused, and in one of the channels, on a full disk": (
        "fsync",
        [*fault("full disk", 0, 3), *publish("m", 2, end="fail"), *subscribe(1), *deliver(1, "m", 4)],
    ),
    "garbled on a full disk, by nsqd": ("nsqd", [*subscribe(1), *fault("full disk", 1, 2), *deliver(1, "half a", 3)]),
    "garbled on a full disk, by nsqd, with the id of the whole message": (
        "nsqd",
        [
            *[*subscribe(1), *fault("full disk", 0, 1), *publish("m", 50)],
            *[*deliver(1, "m", 53), *finish(1, "m", 53, confirms=1), *deliver(1, "half m", 53, message_id="id m")],
        ],
    ),
    "a frame of an earlier attempt is late": (
        "fsync",
        [
            *[*subscribe(1), *subscribe(2), *publish("m"), *fault("stall", 1, 5)],
            *[*deliver(2, "m", 4, attempt=2), *finish(2, "m", 4, confirms=1), *deliver(1, "m", 5)],
        ],
    ),
    "requeued to the disk, and twice there after a kill": (
        "nsqkit",
        [
            *[*publish("m"), *subscribe(1), *deliver(1, "m", 4), *requeue(1, "m", 5), *fault("kill", 5.2, 6)],
            *[*subscribe(2, 6, life=1), *deliver(2, "m", 7), *finish(2, "m", 8, confirms=1)],
            *[*deliver(2, "m", 9, attempt=2), *deliver(2, "m", 9.1, attempt=2)],
        ],
    ),
    "waiting, and twice on the disk of nsqd after a kill": ("nsqd", WAITING_AT_A_KILL),
    "lost at a kill, as promised": ("nsqd", [*publish("m"), *fault("kill", 1, 2), *left(0)]),
    "lost on a full disk, by nsqd": ("nsqd", [*publish("m"), *fault("full disk", 1, 2)]),
    "everything lost at a stop without a disk": ("memory", [*publish("m"), *fault("terminate", 1, 2)]),
    "the same id after a clock was set back, by nsqd": (
        "nsqd",
        [
            *[*subscribe(1), *consumed("m"), *fault("clock", 5, 6), *subscribe(2, 7, life=1), *publish("n", 8)],
            *[*deliver(2, "n", 9, message_id="id m"), *finish(2, "m", 10)],
        ],
    ),
    "RDY is free after a timeout": (
        "nsqd",
        [
            *[*subscribe(1, rdy=1), *subscribe(2), *publish("m"), *deliver(1, "m", 1), *consumed("n", 5)],
            *[*deliver(2, "m", 6, attempt=2), *finish(2, "m", 7)],
        ],
    ),
}

INVALID: dict[str, list[Event]] = {
    "a FIN without a delivery": [*subscribe(1), *publish("m"), *finish(1, "m", 1)],
    "an answer without a publish": [Event("ok", 1, body="m")],
    "two answers": [*publish("m"), Event("ok", 1, body="m")],
    "a body published twice": [*publish("m"), *publish("m")],
    "a delivery to an unknown connection": [*publish("m"), *deliver(1, "m", 1)],
    "a connection twice": [*subscribe(1), *subscribe(1)],
    "an unknown broker": subscribe(1, broker=7),
    "more confirmed than sent": [*subscribe(1), Event("confirm", 1, connection=1, count=1)],
    "the end of no fault": [Event("heal", 1, broker=0, fault="kill")],
}


def checked(promise: str, events: Iterable[Event]):
    return check(Setup(promise, brokers=2), [*events, Event("calm", END - 1), Event("end", END)])


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_refused_for_its_reason_alone(name: str):
    promise, broken, events = BAD[name]
    report = checked(promise, events)
    assert set(report.broken) == {broken}, report.table()
    assert broken in report.table()


@pytest.mark.parametrize("name", GOOD)
def test_good_history_passes(name: str):
    report = checked(*GOOD[name])
    assert not report.broken, report.table()


@pytest.mark.parametrize("name", INVALID)
def test_events_that_contradict_each_other_are_no_history(name: str):
    with pytest.raises(HistoryError):
        checked("fsync", INVALID[name])


def test_history_without_its_end_is_refused():
    with pytest.raises(HistoryError, match="has no end"):
        check(Setup("fsync"), publish("m"))


def test_unknown_promise_is_refused():
    with pytest.raises(HistoryError, match="one of fsync, nsqkit, nsqd, memory, not 'all'"):
        check(Setup("all"), [])


def test_counts_are_those_of_the_history():
    report = checked(
        "fsync",
        [
            *[*subscribe(1), *consumed("m"), *consumed("n", 2), Event("confirm", 3, connection=1, count=2)],
            *[*publish("refused", 4, end="fail"), *publish("unknown", 4, end="info"), *deliver(1, "unknown", 5)],
            *[*publish("silent", 4, end=""), *fault("stop", 6, 7), *fault("stop", 8, 9)],
        ],
    )
    assert report.counts == {
        "attempted": 5,
        "acknowledged": 2,
        "refused": 1,
        "unknown": 2,
        "recovered": 1,
        "delivered": 3,
        "finished": 2,
        "confirmed": 2,
    }
    assert report.faults == {"stop": 2}
    assert report.calm == pytest.approx(1.0)
