"""What a consumer of a world does with messages that it gives up: nothing, a failure of its own, or a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import anyio

from tests.simulation.driver.dead_letters import DeadLetters
from tests.simulation.driver.history import name_of
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from nsqkit.consumer.dead_letter import GivenUp
    from nsqkit.consumer.message import Message
    from tests.simulation.driver.outcomes import Outcomes
    from tests.simulation.driver.world import World


SLOW: Final = 1.2
"""Seconds that giving up takes if it is slow: messages may time out meanwhile."""


class Failure(Exception):
    """The error of a handler, or of another function of a user."""


class GivingUp:
    """The policy of one consumer.

    Args:
        world: the world.
        name: of the consumer.
        options: of its player.
        outcomes: of its handlers.
        on_given_up: called with the name of each message that is given up.
    """

    def __init__(
        self,
        world: World,
        name: str,
        options: dict[str, Any],
        outcomes: Outcomes,
        on_given_up: Callable[[str], None],
    ) -> None:
        self._world = world
        self._how: str = options.get("giving_up", "async")
        self._is_touched: bool = options.get("run", {}).get("auto_touch", False)
        self._attempts_max: int = options.get("max_attempts", 5)
        self._outcomes = outcomes
        self._on_given_up = on_given_up
        self._dead_letters: DeadLetters | None = None
        if "dead_letters" in options:
            self._dead_letters = DeadLetters(world, name, options["dead_letters"])

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return the context of one life of the consumer."""
        return nullcontext() if self._dead_letters is None else self._dead_letters.opened()

    @property
    def policy(self) -> Callable[..., Any]:
        """The function to give to the consumer."""
        if self._dead_letters is not None:
            return self._publish
        return self._do_at_once if self._how == "plain" else self._do_later

    def _do_at_once(self, message: Message) -> None:
        with self._outcomes.giving_up(message):
            self._do(message)

    async def _do_later(self, message: Message) -> None:
        with self._outcomes.giving_up(message):
            is_slow = "slow" in self._how and not self._world.healed.is_set()
            begun = self._world.loop.time()
            await (pass_time(SLOW) if is_slow else anyio.lowlevel.checkpoint())
            if is_slow and self._is_touched:
                self._outcomes.check_held(message, begun)
            self._do(message)

    async def _publish(self, message: Message, given_up: GivenUp) -> None:
        assert self._dead_letters is not None
        with self._outcomes.giving_up(message):
            await self._dead_letters.publish(message, given_up)
            self._do(message)

    def _do(self, message: Message) -> None:
        if "raise" in self._how and message.attempts == self._attempts_max:
            self._world.reached.add("giving_up raises")
            raise Failure("it cannot be given up")
        self._world.reached.add("raises at its last attempt")
        self._on_given_up(name_of(message.body))
