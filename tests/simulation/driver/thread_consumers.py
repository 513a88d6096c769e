"""The players that consume without ``await``: a ``BlockingConsumer``, whose messages several threads receive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from nsqkit.consumer.blocking import BlockingConsumer
from nsqkit.consumer.blocking_message import BlockingMessage
from nsqkit.errors import Closed, MessageError
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.baton import Thread, ask, call
from tests.simulation.driver.closing import Closing
from tests.simulation.driver.consumers import ENOUGH, LONG, SLOW, ConsumerPlayer
from tests.simulation.driver.giving_up import Failure
from tests.simulation.driver.history import name_of
from tests.simulation.driver.network import HOST
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.tally import ConsumerTally
from tests.simulation.plan import Step

if TYPE_CHECKING:
    from nsqkit.consumer.consumer import Consumer
    from nsqkit.consumer.message import Message
    from tests.simulation.driver.world import World

SOON: Final = 0.5
"""Seconds in which a thread that waits has what it waits for; more than those that a batch waits to be full."""
ROUNDING: Final = 0.001
LOOK_EACH: Final = 0.1
SINGLE: Final = frozenset(("iterate", "receive", "receive soon"))
HANDLING: Final = frozenset(("run", "run threads"))
"""The ways of receiving in which nsqkit calls a handler; in the others the program takes messages."""


class ThreadConsumerPlayer(ConsumerPlayer):
    """A ``BlockingConsumer``, which one thread opens and closes, while each of the others receives in its way."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        others = {key: value for key, value in options.items() if key not in {"threads", "timeout"}}
        super().__init__(world, name, others | {"mode": "threads"})
        self._ways: list[str] = options["threads"]
        self._timeout: float = options["timeout"]
        self._steps: deque[Step] = deque()
        self._arrived = anyio.Event()
        self._waiting: dict[int, float] = {}  # since when each thread waits for messages
        self._begun: dict[int, Message] = {}

    async def run(self) -> None:
        HOST.set(self.name)
        await self._world.user_threads.run(self._open_and_close, "main")

    def act(self, step: Step) -> None:
        """Have the main thread do a step."""
        if self.consumer is not None and not self.leaving.is_set():
            self._steps.append(step)
            self._arrived.set()

    def heal(self) -> None:
        """Have the main thread do as its base, after the steps before."""
        self.act(Step(0, "", "heal"))

    # ---- the main thread -------------------------------------------------------------------------------------------

    def _open_and_close(self) -> None:
        consumer = BlockingConsumer(
            self.topic,
            self._channel,
            nsqd_tcp_addresses=[f"{node}:4150" for node in self._nodes],
            lookupd_http_addresses=[f"{lookupd}:4161" for lookupd in self.lookupds],
            clock=call(make_clock),
            on_connection=self._on_connection,
            **self._options,
        )
        while not self._world.is_over:
            self._life += 1
            self.leaving, self._how = call(anyio.Event), {}
            self._live_once(consumer)
            ask(self._stay_away)

    def _live_once(self, consumer: BlockingConsumer) -> None:
        world = self._world
        closing = Closing(world, self.name, self._options["close_timeout"])
        self._outcomes.begin_life(self.leaving)
        self._tally = tally = ConsumerTally(world, self.name, list(world.nodes), self._options["max_in_flight"])
        consumer.open()
        loop_client = consumer._loop_client
        assert loop_client is not None
        inner = loop_client.client
        self._begun.clear()
        self.consumer, self._is_receiving = inner, True
        threads = [
            Thread(target=self._receive_in, args=(number, consumer, way), name=f"thread {number}", daemon=True)
            for number, way in enumerate(self._ways)
        ]
        for thread in threads:
            thread.start()
        call(world.tasks.start_soon, self._watch_waiting, self.leaving, inner)
        while not self.leaving.is_set():
            try:
                self._control(consumer, ask(self._next))
            except Closed:  # another thread stops it meanwhile
                conclude(30, self.leaving.is_set(), f"{self.name} is not stopped, and refuses a call")
        closing.begin()
        if self._how.get("how") == "stop":
            consumer.stop()
        consumer.close()
        self.consumer = None
        closing.check(0.0, has_threads=not HANDLING.isdisjoint(self._ways))
        conclude(24, world.providers[self.name].thread is None, f"{self.name} has closed, and its event loop goes on")
        if (stats := consumer.stats()).in_flight:
            raise Broken(24, f"{self.name} has closed with {stats.in_flight} messages in flight")
        closed_at = world.loop.time()
        ask(pass_time, SOON)
        waiting = [number for number, since in self._waiting.items() if since <= closed_at]
        conclude(30, not waiting, f"threads {waiting} of {self.name} wait, and it has closed")
        for thread in threads:
            thread.join()
        self._is_receiving = False
        tally.check(consumer.stats())
        if not stats.timed_out:
            ask(closing.check_drained, self.topic, self._channel)

    def _control(self, consumer: BlockingConsumer, step: Step) -> None:
        world, values = self._world, step.values
        match step.verb:
            case "leave":
                self._how = values
                call(self.leaving.set)
            case "pause":
                consumer.pause()
            case "resume":
                consumer.resume()
            case "max in flight":
                self._limit_here(consumer, values["count"])
            case "disconnect" if self._nodes:
                world.history.trouble(world.nodes, world.loop.time())
                consumer.disconnect_from_nsqd(f"{self._nodes[0]}:4150")
            case "connect":
                self._connect_all(consumer)
            case "heal":
                consumer.resume()
                self._connect_all(consumer)
                if consumer.stats().max_in_flight < 1:
                    self._limit_here(consumer, 1)

    def _connect_all(self, consumer: BlockingConsumer) -> None:
        for node in self._nodes:
            consumer.connect_to_nsqd(f"{node}:4150")

    def _limit_here(self, consumer: BlockingConsumer, max_in_flight: int) -> None:
        assert self._tally is not None
        self._tally.limit(max_in_flight)
        consumer.change_max_in_flight(max_in_flight)

    # ---- threads that receive --------------------------------------------------------------------------------------

    def _receive_in(self, number: int, consumer: BlockingConsumer, way: str) -> None:
        try:
            if way == "run":
                consumer.run(self._handle_here, giving_up=self._give_up)
            elif way == "run threads":
                consumer.run(self._handle_in_thread, in_threads=True, giving_up=self._give_up)
            else:
                self._take(number, way, consumer)
        except Closed:
            self._waiting.pop(number, None)
        if not self.leaving.is_set():
            raise Broken(27, f"thread {number} of {self.name} receives no more, and the consumer is not stopped")

    def _taker(self, consumer: BlockingConsumer, way: str) -> tuple[Callable[[], list[BlockingMessage]], float | None]:
        """Return a function that returns the next messages, none at the end or after a time, and this time."""
        timeout = self._timeout
        match way:
            case "iterate":
                return _each(iter(consumer)), None
            case "receive":
                return lambda: _list(consumer.receive()), None
            case "receive soon":
                return lambda: _list(consumer.receive(timeout)), timeout
            case "batches":
                batches = consumer.batches(**self._batch)
                return lambda: next(batches, []), None
            case _:
                return lambda: consumer.receive_batch(**self._batch, timeout=timeout), timeout

    def _take(self, number: int, way: str, consumer: BlockingConsumer) -> None:
        loop = self._world.loop
        take, timeout = self._taker(consumer, way)
        while True:
            begun = loop.time()
            self._waiting.setdefault(number, begun)
            messages = take()
            lasted = loop.time() - begun
            if messages:
                del self._waiting[number]
                if way in SINGLE and not self._world.user_threads.share and messages[0].is_answered:
                    raise Broken(
                        5, f"{messages[0].body[:60]!r} is given to a thread of {self.name}, and has its answer"
                    )
                names = [call(self._begin_received, message) for message in messages]
                for message, (name, fate) in zip(messages, names, strict=True):
                    self._answer_here(message, name, fate)
                    if fate == "stop":
                        self._stop_here(consumer)
            elif self.leaving.is_set():
                del self._waiting[number]
                return
            elif timeout is None or lasted < timeout - ROUNDING:
                raise Broken(27, f"{way} of {self.name} returns no message after {lasted:.3f} seconds")
            if timeout is not None and lasted > timeout + SOON:
                raise Broken(30, f"{way} of {self.name} returns after {lasted:.3f}, not {timeout:.3f} seconds")

    def _answer_here(self, message: BlockingMessage, name: str, fate: str) -> None:
        try:
            self._suffer_here(message, name, fate)
        except Failure:
            if not message.is_answered:
                message.requeue(0.1)
            return
        if fate == "keep":
            return
        call(self._world.history.done, self.topic, self._channel, name)
        if not message.is_answered:
            self._finish_here(message)

    def _handle_here(self, message: BlockingMessage) -> None:
        name, fate = call(self._begin, message)
        if fate == "raise":
            raise call(self._outcomes.failure, message)
        self._suffer_here(message, name, fate)
        call(self._world.history.done, self.topic, self._channel, name)

    def _suffer_here(self, message: BlockingMessage, name: str, fate: str) -> None:
        match fate:
            case "slow":
                ask(self._pause, SLOW)
            case "hang":
                ask(pass_time, LONG)
            case "raise":
                raise Failure(name)
            case "touch":
                for _ in range(3):
                    ask(self._pause, SLOW)
                    self._touch_here(message)
            case "finish twice":
                self._finish_here(message)
                with suppress(MessageError):
                    message.finish()
            case "requeue":
                with suppress(MessageError):
                    message.requeue(SLOW)

    def _finish_here(self, message: BlockingMessage) -> None:
        """Finish a message; that certainly has an effect if there is time, and the consumer is not stopped before."""
        has_time = message.time_left > ENOUGH
        message.finish()
        if has_time and not self.leaving.is_set():
            call(self._record_finish, message.delivery)

    def _touch_here(self, message: BlockingMessage) -> None:
        """Touch a message; then it has the time of its delivery.

        Raises:
            Broken: it has less.
        """
        with suppress(MessageError):  # it may time out just before
            message.touch()
            if message.deadline_ns < message.delivery.deadline_ns:
                raise call(self._world.failed, Broken(5, f"{self.name} has touched a message, which has no more time"))

    def _stop_here(self, consumer: BlockingConsumer) -> None:
        """Stop the consumer, which the main thread closes then."""
        call(self.act, Step(0, "", "leave"))
        call(self.leaving.set)
        consumer.stop()

    def _give_up(self, message: BlockingMessage) -> None:
        self._world.reached.add("given up in a thread")
        self._outcomes.give_up(message.delivery)
        self._on_given_up(name_of(message.body))

    # ---- in the event loop -----------------------------------------------------------------------------------------

    async def _next(self) -> Step:
        while not self._steps:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._steps.popleft()

    async def _stay_away(self) -> None:
        self._steps.clear()
        with anyio.move_on_after(self._how.get("for_us", 0) / 1e6):
            await self._world.healed.wait()

    def _begin_received(self, message: BlockingMessage) -> tuple[str, str]:
        self._outcomes.receive(message.delivery)
        return self._begin(message)

    def _begin(self, message: Message) -> tuple[str, str]:
        """As its base; check that no other call has got the message."""
        assert isinstance(message, BlockingMessage)
        delivery = message.delivery
        if id(delivery) in self._begun:
            raise Broken(5, f"{delivery.body[:60]!r} was given to two calls of {self.name}")
        self._begun[id(delivery)] = delivery
        return super()._begin(message)

    async def _watch_waiting(self, leave: anyio.Event, consumer: Consumer) -> None:
        """Check that no message waits while a thread waits for one."""
        core = consumer.subscription.core
        while not leave.is_set():
            await pass_time(LOOK_EACH)
            now, now_ns = self._world.loop.time(), consumer.subscription.now_ns()
            if not any(since < now - SOON for since in self._waiting.values()) or leave.is_set():
                continue
            for session in core.sessions:
                for message in session.held.values():
                    if id(message) not in self._begun and message.received_ns < now_ns - round(SOON * 1e9):
                        text = f"{message.body[:60]!r} waits, and so do threads {[*self._waiting]} of {self.name}"
                        raise Broken(27, text)


def _list(message: BlockingMessage | None) -> list[BlockingMessage]:
    return [] if message is None else [message]


def _each(messages: Iterator[BlockingMessage]) -> Callable[[], list[BlockingMessage]]:
    return lambda: _list(next(messages, None))
