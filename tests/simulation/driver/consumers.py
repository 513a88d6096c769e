"""The players that consume: a ``Consumer`` in one of its ways of receiving, with handlers of many kinds.

The fate of a delivery is drawn from the name of the message and its attempt, so a step that is taken out of a plan
does not change the others. Once all faults have ended, handlers finish everything at once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio

from nsqkit.consumer.consumer import Consumer
from nsqkit.consumer.message import Message
from nsqkit.errors import MessageError, OptionError
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.closing import Closing, visit
from tests.simulation.driver.giving_up import Failure, GivingUp
from tests.simulation.driver.grants import PERMANENT, REFUSALS
from tests.simulation.driver.network import HOST
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.outcomes import Outcomes
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.tally import ConsumerTally

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.driver.wire import Wire
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

SLOW: Final = 0.3
LONG: Final = 5.0
"""Seconds of a handler that hangs, also after the end of all faults; longer than most message timeouts."""
ENOUGH: Final = 0.5
"""Seconds that have to be left of a message's timeout so that its FIN certainly arrives in time."""
HTTP_PORT: Final = 4151


class Kept(Exception):
    """The program gives no answer to a message."""


class ConsumerPlayer:
    """One consumer, which is left and made again.

    Attributes:
        consumer: the present one; None between two lives.
        leaving: set once the present one is to be left.
        topic: that it consumes.
        lookupds: those that it asks, every ``poll_interval`` seconds.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        own = {"kind", "nodes", "lookupds", "topic", "channel", "mode", "fates", "run", "batch", "confirms"}
        own |= {"giving_up", "hook_fails", "thread_us", "dead_letters", "apart"}
        self.name = name
        self.consumer: Consumer | None = None
        self._world = world
        self._nodes = list(options.get("nodes", ()))
        self.lookupds = list(options.get("lookupds", ()))
        self.topic: str = options["topic"]
        self.poll_interval: float = options.get("lookupd_poll_interval", 60.0)
        self._channel: str = options["channel"]
        self._mode: str = options.get("mode", "run")
        self._fates: list[str] = options.get("fates", ["finish"])
        self._run: dict[str, Any] = dict(options.get("run", {}))
        self._batch: dict[str, Any] = dict(options.get("batch", {}))
        self._confirms: bool = options.get("confirms", False)
        self._is_apart: bool = options.get("apart", False)  # the task that receives outlives the consumer's block
        self._outcomes = Outcomes(world, name, self._find)
        self._outcomes.has_key_errors = self._run.get("key_fails", False)
        self._outcomes.is_batched = self._mode == "run batches"
        self._outcomes.attempts_max = 0 if self._mode in {"iterate", "batches"} else options.get("max_attempts", 5)
        self._giving_up = GivingUp(world, name, options, self._outcomes, self._on_given_up)
        self._hook_fails: bool = options.get("hook_fails", False)
        if "thread_us" in options:
            world.threads.lasting[name] = (0.0, options["thread_us"] / 1e6)
        self._options = {key: value for key, value in options.items() if key not in own}
        self._tally: ConsumerTally | None = None
        self.confirming_count = 0  # batches whose FINs are sent and not confirmed yet
        self.leaving = anyio.Event()
        self._how: dict[str, Any] = {}
        self._life = 0
        self._active: Counter[object] = Counter()
        self._receiving = anyio.CancelScope()  # cancelled where the program calls ``run`` again
        self._is_receiving = False
        self._answered_later: list[Message] = []
        self._received_ns: dict[int, int] = {}  # of the last message of each lane

    async def run(self) -> None:
        """Play; return when the world has ended."""
        HOST.set(self.name)
        while not self._world.is_over:
            self._life += 1
            self.leaving, self._how = anyio.Event(), {}
            async with self._giving_up.opened():
                await self._live()
                if self._how.get("visit"):
                    await visit(self._world, self.name, self._make_consumer())
            with anyio.move_on_after(self._how.get("for_us", 0) / 1e6):
                await self._world.healed.wait()

    def _make_consumer(self) -> Consumer:
        return Consumer(
            self.topic,
            self._channel,
            nsqd_tcp_addresses=[f"{node}:4150" for node in self._nodes],
            lookupd_http_addresses=[f"{lookupd}:4161" for lookupd in self.lookupds],
            clock=make_clock(),
            random=Random(f"{self._world.plan.seed}/{self.name}/{self._life}"),
            on_connection=self._on_connection,
            **self._options,
        )

    async def _live(self) -> None:
        world = self._world
        consumer = self._make_consumer()
        closing = Closing(world, self.name, consumer.options.close_timeout)
        self._tally = tally = ConsumerTally(world, self.name, list(world.nodes), consumer.options.max_in_flight)
        tally.delay_max = 0.0 if self.lookupds else consumer.options.reconnect_delay_max
        self._received_ns.clear()
        self._outcomes.begin_life(self.leaving)
        async with anyio.create_task_group() as apart, consumer:
            self.consumer, self._is_receiving = consumer, True
            async with anyio.create_task_group() as tasks:
                (apart if self._is_apart else tasks).start_soon(self._receive_until_failure, consumer)
                await self.leaving.wait()
                closing.begin()
                self._reach_at_leave(consumer)
                if self._how.get("how") != "cancel":
                    consumer.stop()
                    waiting = consumer.stats().waiting
                    conclude(30, not waiting, f"{self.name} has stopped, and {waiting} messages wait for a handler")
                elif not self._is_apart:
                    tasks.cancel_scope.cancel()
            if self._mode in {"iterate", "batches"}:  # the program answers, and takes its time
                closing.begin()
            self.consumer = None
        self._is_receiving = False
        closing.check(self._outcomes.ended_at, has_threads=self._mode == "threads")
        for message in self._answered_later:
            message.finish()  # its connection has ended, so this does nothing
        self._answered_later.clear()
        if (left := consumer.stats()).in_flight:
            raise Broken(24, f"{self.name} has closed with {left.in_flight} messages in flight")
        tally.check(left)
        if not left.timed_out:  # a broker may find later than its client that a message has timed out
            await closing.check_drained(self.topic, self._channel)

    def _reach_at_leave(self, consumer: Consumer) -> None:
        stats = consumer.stats()
        if not all(connection.connected for connection in stats.connections):
            self._world.reached.add("leaves while it dials")
        if stats.in_flight:
            self._world.reached.add("leaves with messages")

    def _on_connection(self, address: str, error: Exception | None) -> None:
        self._world.watch_connection(address, error)
        if self._hook_fails:
            raise Failure(address)

    @property
    def is_connected(self) -> bool:
        if self.consumer is None:
            return False
        connected = {stats.address for stats in self.consumer.stats().connections if stats.connected}
        return connected >= {f"{node}:4150" for node in (self._world.nodes if self.lookupds else self._nodes)}

    # ---- steps ---------------------------------------------------------------------------------------------------

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        consumer = self.consumer
        if consumer is None:
            return
        match step.verb:
            case "leave" if not self.leaving.is_set():
                self._how = step.values
                self.leaving.set()
            case "receive again" if self._mode in {"run", "run batches", "plain"}:
                self._receiving.cancel()
            case "pause":
                consumer.pause()
            case "resume":
                consumer.resume()
            case "max in flight":
                self._limit(consumer, step.values["count"])
            case "disconnect" if not self.leaving.is_set():
                self._disconnect(consumer)
            case "connect wrong" if not self.leaving.is_set() and self._nodes:
                self._world.history.trouble(self._world.nodes, self._world.loop.time())
                with suppress(*PERMANENT):  # it has ended because of such an address, or of its secret
                    consumer.connect_to_nsqd(f"{self._nodes[0]}:{HTTP_PORT}")
            case "connect" if not self.leaving.is_set():
                self._connect(consumer)

    def _disconnect(self, consumer: Consumer) -> None:
        """Take the first nsqd, or the first nsqlookupd, away; handlers have ``close_timeout`` then, as at a stop."""
        self._world.history.trouble(self._world.nodes, self._world.loop.time())
        with suppress(OptionError):  # it is away already
            if self.lookupds:
                consumer.disconnect_from_lookupd(f"{self.lookupds[0]}:4161")
            elif self._nodes:
                consumer.disconnect_from_nsqd(f"{self._nodes[0]}:4150")

    def _connect(self, consumer: Consumer) -> None:
        assert self._tally is not None
        self._tally.begin_anew()
        with suppress(*PERMANENT):  # it has ended because of a wrong address, or of its secret
            for lookupd in self.lookupds:
                consumer.connect_to_lookupd(f"{lookupd}:4161")
            for node in self._nodes:
                consumer.connect_to_nsqd(f"{node}:4150")

    def heal(self) -> None:
        """Receive again, as much as in the beginning."""
        self._world.threads.lasting.pop(self.name, None)
        if self.consumer is not None:
            with suppress(OptionError):  # it has no wrong address
                self.consumer.disconnect_from_nsqd(f"{self._nodes[0] if self._nodes else ''}:{HTTP_PORT}")
            self.consumer.resume()
            if not self.leaving.is_set():
                self._connect(self.consumer)
            if self.consumer.stats().max_in_flight < 1:
                self._limit(self.consumer, 1)

    def _limit(self, consumer: Consumer, max_in_flight: int) -> None:
        assert self._tally is not None
        self._tally.limit(max_in_flight)
        consumer.change_max_in_flight(max_in_flight)

    def in_flight(self) -> list[str]:
        """Return a line if messages count as in flight."""
        count = 0 if self.consumer is None else self.consumer.stats().in_flight
        return [f"{count} are in flight in {self.name}"] if count else []

    def without_rdy(self, since: float) -> list[str]:
        """Return a line for each connection that has had no RDY since a time."""
        return [] if self._tally is None or self.consumer is None else self._tally.without_rdy(since)

    # ---- receiving -----------------------------------------------------------------------------------------------

    async def _receive_until_failure(self, consumer: Consumer) -> None:
        """Receive; a permanent error ends the consumer, if that is an option of it, and another one follows."""
        try:
            is_cancelled = True
            while is_cancelled:
                with anyio.CancelScope() as self._receiving:
                    await self._receive(consumer)
                is_cancelled = self._receiving.cancelled_caught
        except PERMANENT as error:
            if not consumer.options.end_on_permanent_error:
                raise
            self._world.reached.add("permanent error")
            if isinstance(error, REFUSALS) and not self.leaving.is_set():  # the next one may fail in the same way
                self._how = {"for_us": 200_000}
            self.leaving.set()

    async def _receive(self, consumer: Consumer) -> None:
        run = {**self._run}
        if run.pop("lanes", 0):
            run["key"] = self._key if run.pop("key_fails", False) else self._lane
        giving_up = self._giving_up.policy
        match self._mode:
            case "iterate":
                async for message in consumer:
                    await self._answer(message)
            case "batches":
                async for batch in consumer.batches(**self._batch):
                    self._check_batch(batch)
                    if self._confirms:
                        await self._confirm(consumer, batch)
                        continue
                    for message in batch:
                        await self._answer(message)
            case "run batches":
                concurrency = run.get("concurrency", 1)
                await consumer.run_batches(
                    self._handle_batch, concurrency=concurrency, giving_up=giving_up, **self._batch
                )
            case "threads":
                await consumer.run(self._handle_in_thread, in_threads=True, giving_up=giving_up, **run)
            case "plain":
                await consumer.run(self._handle_plainly, giving_up=giving_up, **run)
            case _:
                await consumer.run(self._handle, giving_up=giving_up, **run)

    def _check_batch(self, messages: list[Message]) -> None:
        if not messages:
            raise self._world.failed(Broken(11, f"{self.name} got a batch without a message"))

    @staticmethod
    def _lane(message: Message) -> int:
        return len(message.body) % 3

    def _key(self, message: Message) -> int:
        if message.attempts == 1 and len(message.body) % 2 and not self._world.healed.is_set():
            raise Failure("it has no key")
        return self._lane(message)

    async def _confirm(self, consumer: Consumer, batch: list[Message]) -> None:
        """Touch and finish messages, and wait until the brokers have done so."""
        names = {message: self._begin(message) for message in batch}
        await consumer.touch_confirmed(batch)
        if any(fate == "slow" for _, fate in names.values()):
            await self._pause(SLOW)
        self.confirming_count += 1
        begun = self._world.loop.time()
        try:
            confirmation = await consumer.finish_confirmed(batch)
        except anyio.get_cancelled_exc_class():  # the FINs were sent
            for name, _ in names.values():
                self._world.history.done(self.topic, self._channel, name)
            raise
        finally:
            self.confirming_count -= 1
        self._check_known(confirmation.unknown, begun)
        for message, (name, _) in names.items():
            if message in confirmation.failed:
                self._world.reached.add("not confirmed")
                continue
            self._world.history.done(self.topic, self._channel, name)
            is_known = message not in confirmation.unknown
            self._world.reached.add("confirmed" if is_known else "perhaps confirmed")
            if is_known:
                key = (message.nsqd_address.partition(":")[0], message.id)
                self._world.history.finish(self.topic, self._channel, name, key, self._world.loop.time())

    def _check_known(self, unknown: Sequence[Message], begun: float) -> None:
        """Check that FINs whose outcome is unknown have met a fault, or that the consumer had no time left."""
        world = self._world
        nodes = {message.nsqd_address.partition(":")[0] for message in unknown}
        has_time = world.loop.time() - begun < self._options.get("close_timeout", 5.0)
        is_calm = not world.has_link_faults and world.history.is_calm(nodes, begun)
        is_removed = any(removal.end >= begun for removal in world.history.removals)  # its channel, perhaps
        if unknown and has_time and is_calm and not is_removed:
            raise world.failed(Broken(9, f"{self.name} does not know whether {unknown[0].body[:60]!r} is finished"))

    async def _answer(self, message: Message) -> None:
        """Handle a message where the program itself answers, or does not."""
        try:
            await self._handle(message)
        except Failure:
            if not message.is_answered:
                message.requeue(0.1)
            return
        except Kept:
            return
        if not message.is_answered:
            self._record_finish(message)
            message.finish()

    def _begin(self, message: Message) -> tuple[str, str]:
        """Record a delivery; return the name of the message, and its fate."""
        if not self._is_receiving:
            raise self._world.failed(Broken(19, f"a handler of {self.name} begins after the end"))
        if self._run.get("lanes"):
            lane = self._lane(message)
            if message.received_ns < self._received_ns.get(lane, 0):
                raise self._world.failed(Broken(19, f"lane {lane} of {self.name} is not in the order of arrival"))
            self._received_ns[lane] = message.received_ns
        world = self._world
        node = message.nsqd_address.partition(":")[0]
        try:
            name = world.history.deliver(self.topic, self._channel, node, message.id, message.body, message.attempts)
        except Broken as broken:
            raise world.failed(broken) from None
        if message.attempts == 3:
            world.reached.add("third attempt")
        fate = "finish"
        if not world.healed.is_set():
            fate = Random(f"{world.plan.seed}/{self.name}/{name}/{message.attempts}").choice(self._fates)
        world.note("%s: %s attempt %d: %s", self.name, name, message.attempts, fate)
        # The messages of other modes may wait after they were taken.
        self._outcomes.begin(message, is_new=self._mode in {"run", "run batches", "plain", "iterate"})
        return name, fate

    @contextmanager
    def _counted(self, message: Message) -> Iterator[None]:
        """Count the handlers that run, and those of a lane."""
        limit = self._run.get("concurrency", 1) if self._mode in {"run", "threads", "plain"} else 1
        keys: dict[object, int] = {"all": limit}
        if self._run.get("lanes"):
            keys["lane", self._lane(message)] = 1
        for key, count_max in keys.items():
            self._active[key] += 1
            if self._active[key] > count_max:
                text = f"{self._active[key]} handlers of {self.name} run at once for {key}"
                raise self._world.failed(Broken(19, text))
        try:
            yield
        finally:
            if self._mode in {"run", "plain"}:
                self._outcomes.end(message)
            for key in keys:
                self._active[key] -= 1
            name = self._world.history.name(self.topic, message.body)
            self._world.note("%s: a handler of %s has ended", self.name, name)

    async def _handle(self, message: Message) -> None:
        name, fate = self._begin(message)
        begun = self._world.loop.time()
        with self._counted(message):
            try:
                await self._suffer(message, name, fate)
            except anyio.get_cancelled_exc_class():
                is_stopped = self.leaving.is_set() or self._receiving.cancel_called
                if is_stopped and message.time_left:
                    self._outcomes.forget(message)
                self._world.reached.add("cancelled by a stop" if is_stopped else "cancelled at its timeout")
                raise
        if fate in {"slow", "hang"} and self._run.get("auto_touch"):
            self._outcomes.check_held(message, begun)
        if fate in {"slow", "hang"} and message.is_answered:
            self._outcomes.end_late(message)
        self._outcomes.succeed(message)
        self._world.history.done(self.topic, self._channel, name)

    async def _suffer(self, message: Message, name: str, fate: str) -> None:
        match fate:
            case "slow":
                await self._pause(SLOW)
            case "hang":
                await pass_time(LONG)
            case "raise":
                await anyio.lowlevel.checkpoint()
                raise self._outcomes.failure(message)
            case "keep":
                raise Kept
            case "touch":
                for _ in range(3):
                    await self._pause(SLOW)
                    if not message.is_answered:
                        message.touch()
            case "finish twice":
                self._answer_twice(message)
            case "requeue":
                if not message.is_answered:
                    message.requeue(SLOW)
            case "later":
                self._answered_later.append(message)
                await self._pause(SLOW)

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._world.healed.wait()

    def _answer_twice(self, message: Message) -> None:
        if message.is_answered:
            return
        self._record_finish(message)
        message.finish()
        try:
            message.finish()
        except MessageError:
            return
        if message.time_left and self.consumer is not None:
            raise self._world.failed(Broken(10, f"{self.name} has finished a message twice, without an error"))

    def _record_finish(self, message: Message) -> None:
        """Record that a message is finished in time."""
        if message.time_left > ENOUGH and not self._world.has_link_faults:
            node = message.nsqd_address.partition(":")[0]
            name = message.body.decode().rsplit(".", 1)[0] if message.body.count(b".") == 2 else ""
            if name:
                now = self._world.loop.time()
                self._world.history.finish(self.topic, self._channel, name, (node, message.id), now)

    def _handle_in_thread(self, message: Any) -> None:
        name, fate = self._begin(message)
        if fate == "raise":
            raise self._outcomes.failure(message)
        if fate == "finish twice":
            message.finish()
        elif fate == "requeue" and not message.is_answered:
            message.requeue(SLOW)
        self._world.history.done(self.topic, self._channel, name)

    def _handle_plainly(self, message: Message) -> Any:
        name, fate = self._begin(message)
        with self._counted(message):
            if fate == "raise":
                raise self._outcomes.failure(message)
            if fate == "slow":  # nothing iterates it, so the call has failed
                return (each for each in [message])
            if fate == "finish twice":
                self._answer_twice(message)
        self._outcomes.succeed(message)
        self._world.history.done(self.topic, self._channel, name)
        return None

    async def _handle_batch(self, messages: list[Message]) -> None:
        self._check_batch(messages)
        begun = [self._begin(message) for message in messages]
        try:
            for _, fate in begun[:1]:
                if fate == "raise":
                    raise Failure(fate)
                await (pass_time(LONG) if fate == "hang" else self._pause(SLOW if fate == "slow" else 0.0))
        except anyio.get_cancelled_exc_class():
            for message in messages:
                self._outcomes.forget(message)
            raise
        finally:
            for message in messages:
                self._outcomes.end(message)
        for message, (name, _) in zip(messages, begun, strict=True):
            self._outcomes.succeed(message)
            self._world.history.done(self.topic, self._channel, name)

    def _find(self, message: Message) -> Wire | None:
        return None if self._tally is None else self._tally.find(message)

    def _on_given_up(self, name: str) -> None:
        self._world.history.done(self.topic, self._channel, name)
        assert self._tally is not None
        self._tally.given_up += 1
