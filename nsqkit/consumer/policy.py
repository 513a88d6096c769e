"""Calls ``giving_up`` in the event loop, or in a worker thread if it blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread

from nsqkit.consumer.dead_letter import DeadLetter, with_two_arguments
from nsqkit.consumer.handler import call_in_thread, check_handler
from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.consumer.dead_letter import GivenUp, Policy
    from nsqkit.consumer.message import Message


def policy_of(giving_up: Callable[..., Any]) -> Policy:
    """Return a policy for the event loop; a ``DeadLetter`` of a ``BlockingProducer`` is called in a thread."""
    policy = with_two_arguments(giving_up)
    if isinstance(giving_up, DeadLetter) and not giving_up.is_async:
        return _in_thread(policy, lambda message: message)
    return policy


def policy_in_thread(giving_up: Callable[..., Any], wrap: Callable[[Message], Message]) -> Policy:
    """Return a policy for the event loop that calls a plain function in a worker thread, with a wrapped message.

    Raises:
        OptionError: as ``policy_of``; or the function is async, or publishes through an async producer.
    """
    if isinstance(giving_up, DeadLetter) and giving_up.is_async:
        raise OptionError(
            "giving_up is a DeadLetter with a producer of an event loop; allowed in a BlockingConsumer is one with a "
            "BlockingProducer"
        )
    check_handler(giving_up, can_await=False, name="giving_up")
    return _in_thread(with_two_arguments(giving_up), wrap)


def _in_thread(policy: Policy, wrap: Callable[[Message], Message]) -> Policy:
    async def give_up(message: Message, given_up: GivenUp) -> None:
        await anyio.to_thread.run_sync(call_in_thread, lambda wrapped: policy(wrapped, given_up), wrap(message))

    return give_up
