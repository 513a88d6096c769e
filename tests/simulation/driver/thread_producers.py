"""The players that publish without ``await``: a ``BlockingProducer``, which several threads share."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from nsqkit.errors import NSQError
from nsqkit.loop_thread import OneShot
from nsqkit.producer.blocking import BlockingProducer
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.baton import Thread, ask, call
from tests.simulation.driver.network import HOST
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.producers import LEAVE_MAX, ProducerPlayer
from tests.simulation.driver.tally import ProducerTally

if TYPE_CHECKING:
    from tests.simulation.driver.history import Publish
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

SOON: Final = 0.5
"""Seconds in which a call ends whose producer has closed: for the threads before it."""


class ThreadProducerPlayer(ProducerPlayer):
    """A ``BlockingProducer``, which one thread opens and closes while others publish."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        super().__init__(world, name, {key: value for key, value in options.items() if key != "threads"})
        self._steps: list[deque[Step]] = [deque() for _ in range(options["threads"])]
        self._arrived = anyio.Event()

    async def run(self) -> None:
        HOST.set(self.name)
        if self.nodes:
            self.is_running = True
            await self.world.user_threads.run(self._open_and_close, "main")
            self.is_running = False

    def act(self, step: Step) -> None:
        """Do one step of the plan; no call of a thread can be cancelled."""
        if step.verb != "cancel":
            super().act(step)

    def is_alone(self, topic: str) -> bool:
        return False

    def check_error(self, publish: Publish, error: NSQError, step: Step) -> None:
        if self._tally is not None:
            self.check_sent(self._tally, publish, error)

    # ---- in threads ------------------------------------------------------------------------------------------------

    def _open_and_close(self) -> None:
        world = self.world
        producer = BlockingProducer(
            *[f"{node}:4150" for node in self.nodes],
            on_connection=world.watch_connection,
            **self.options,
        )
        threads = [
            Thread(target=self._work, args=(producer, steps), name=f"thread {number}", daemon=True)
            for number, steps in enumerate(self._steps)
        ]
        for thread in threads:
            thread.start()
        while not world.is_over:
            self._leave = call(anyio.Event)
            self._tally = tally = ProducerTally(world, self.name, self.nodes)
            producer.open()
            loop_client = producer._loop_client
            assert loop_client is not None
            self.producer = loop_client.client
            ask(self._leave.wait)
            begun = world.loop.time()
            producer.close()
            self._check_closed(world.loop.time() - begun)
            self._check_released(self.producer)
            tally.check(self.producer.stats())
        self.producer = None
        call(self._arrived.set)
        for thread in threads:
            thread.join()

    def _check_closed(self, lasted: float) -> None:
        if lasted > LEAVE_MAX:
            raise Broken(30, f"{self.name} took {lasted:.3f} seconds to close")
        provider = self.world.providers[self.name]
        conclude(24, provider.thread is None, f"{self.name} has closed, and its event loop has not ended")
        before = list(self.running)
        ask(pass_time, SOON if before else 0)
        left = [publish.names for publish in before if publish in self.running]
        conclude(30, not left, f"{left} have no outcome, and their producer has closed")

    def _work(self, producer: BlockingProducer, steps: deque[Step]) -> None:
        while (step := ask(self._next, steps)) is not None:
            publish, bodies = self._make(step)
            result = OneShot[None]()
            call(self._begin, publish, step, result)
            try:
                future = self._call_from_thread(producer, publish.topic, bodies, step)
            except NSQError as error:
                call(result.resolve, error)
            else:
                if future is None:
                    call(result.resolve, None)
                else:
                    future.add_done_callback(partial(_resolve, result))

    def _call_from_thread(
        self, producer: BlockingProducer, topic: str, bodies: list[bytes], step: Step
    ) -> Future[None] | None:
        values = step.values
        key, delay = values.get("key"), values.get("delay_us", 0) / 1e6
        timeout = values["timeout_us"] / 1e6 if values.get("timeout_us") else None
        match values["how"]:
            case "multi nowait":
                return producer.multi_publish_nowait(topic, bodies, key=key)
            case "deferred nowait":
                return producer.deferred_publish_nowait(topic, bodies[0], delay, key=key)
            case "publish nowait":
                return producer.publish_nowait(topic, bodies[0], key=key)
            case "multi":
                producer.multi_publish(topic, bodies, key=key, timeout=timeout)
            case "deferred":
                producer.deferred_publish(topic, bodies[0], delay, key=key, timeout=timeout)
            case _:
                producer.publish(topic, bodies[0], key=key, timeout=timeout)
        return None

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def _publish(self, step: Step) -> None:
        self._steps[step.values.get("thread", 0)].append(step)
        self.waiting_count += 1
        self._arrived.set()

    async def _next(self, steps: deque[Step]) -> Step | None:
        while not steps:
            if self.world.is_over and self.producer is None:
                return None
            if self._arrived.is_set():
                self._arrived = anyio.Event()
            await self._arrived.wait()
        return steps.popleft()

    def _begin(self, publish: Publish, step: Step, result: OneShot[None]) -> None:
        async def wait() -> None:
            await result

        self.waiting_count -= 1
        self.world.history.begin(publish)
        self.world.note("%s: %s %s to %s", self.name, step.values["how"], publish.names, publish.topic)
        self._start(publish, wait, step)


def _resolve(result: OneShot[None], future: Future[None]) -> None:
    error = future.exception()
    call(result.resolve, error)
