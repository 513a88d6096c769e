"""The messages that may be in flight on a connection: its bytes, the first messages, and a change of their size."""

from __future__ import annotations

from nsqkit.spark.in_flight_bytes import FIRST, InFlightBytes

MIB = 1 << 20


def limits(in_flight_bytes: InFlightBytes, sizes: list[int], count: int = 16) -> list[int]:
    found = []
    for size in sizes:
        in_flight_bytes.receive(count, size * count)
        found.append(in_flight_bytes.limit)
    return found


def test_a_connection_begins_with_few_messages() -> None:
    assert InFlightBytes(8 * MIB, 2500).limit == FIRST
    assert InFlightBytes(8 * MIB, 5).limit == 5


def test_the_limit_of_small_messages_rises_to_that_of_the_option() -> None:
    assert limits(InFlightBytes(8 * MIB, 2500), [200] * 5) == [64, 256, 1024, 2500, 2500]
    assert limits(InFlightBytes(8 * MIB, 2500), [0] * 4) == [64, 256, 1024, 2500]


def test_large_messages_have_the_bytes_of_the_budget_in_flight() -> None:
    assert limits(InFlightBytes(8 * MIB, 2500), [50_000] * 4) == [64, 167, 167, 167]
    assert limits(InFlightBytes(8 * MIB, 2500), [20 * MIB] * 2) == [1, 1]


def test_the_limit_follows_the_size() -> None:
    in_flight_bytes = InFlightBytes(8 * MIB, 2500)
    limits(in_flight_bytes, [200] * 5, count=200)
    assert limits(in_flight_bytes, [50_000], count=64) == [167]
    assert limits(in_flight_bytes, [200] * 3, count=64) == [668, 2500, 2500]


def test_a_small_change_is_not_worth_a_command() -> None:
    in_flight_bytes = InFlightBytes(8 * MIB, 2500)
    limits(in_flight_bytes, [50_000] * 4)
    assert limits(in_flight_bytes, [55_000, 45_000]) == [167, 167]
