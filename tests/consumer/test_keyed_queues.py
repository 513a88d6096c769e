from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.keyed_queues import KeyedQueues


def queues_of(inbox: deque[Any], count: int, key: Any = lambda message: message[0]) -> Any:
    return KeyedQueues(inbox, count, key)


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers())), max_size=5), st.integers(1, 4))
def test_key_has_one_queue_in_order_of_arrival(arrivals, count):
    inbox: deque[Any] = deque()
    keyed = queues_of(inbox, count)
    for arrival in arrivals:
        inbox.extend(arrival)
        keyed.sort()
        assert not inbox
    come = [message for arrival in arrivals for message in arrival]
    for key in range(6):
        holding = [queue for queue in keyed.queues if any(message[0] == key for message in queue)]
        assert len(holding) <= 1
        if holding:
            assert [it for it in holding[0] if it[0] == key] == [it for it in come if it[0] == key]


def test_a_message_without_a_key_is_returned_with_the_error_and_the_others_are_sorted():
    inbox: deque[Any] = deque([("a", 1), (), ("b", 2)])
    keyed = queues_of(inbox, 1)
    ((message, error),) = keyed.sort()
    assert list(keyed.queues[0]) == [("a", 1), ("b", 2)]
    assert (message, str(error)) == ((), "tuple index out of range")


def test_unhashable_key_is_an_error():
    keyed = queues_of(deque([([], 1)]), 1)
    ((message, error),) = keyed.sort()
    assert (message, str(error)) == (([], 1), "unhashable type: 'list'")
