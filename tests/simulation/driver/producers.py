"""The players that publish: a ``Producer``, and an ``HTTPProducer``, each call in a task that may be cancelled."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    NotConnected,
    NSQError,
    OptionError,
    PublishTimeout,
    RequestRefused,
    WouldWait,
)
from nsqkit.http.daemon import Daemon
from nsqkit.producer.http_producer import HTTPProducer
from nsqkit.producer.producer import Producer
from nsqkit.producer.publisher import RETRIABLE
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.closing import visit
from tests.simulation.driver.grants import REFUSALS
from tests.simulation.driver.history import OK, REFUSED, UNKNOWN, Publish, make_body
from tests.simulation.driver.kept import check_acknowledged
from tests.simulation.driver.network import HOST, LINK_FAULTS
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.tally import ProducerTally

if TYPE_CHECKING:
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

CLOSE_MAX = 5.0
LEAVE_MAX = CLOSE_MAX + 1.0 + 1.0
"""Seconds in which a producer closes: those of ``nsqkit.producer.pool``, and one more."""

LEAVE_ALONE_MAX = 1.5
"""The same, if all calls have ended, and those that do not wait have their answers: it waits for none."""

DELAYING_FAULTS = frozenset(("kill", "stop", "power cut", "slow disk"))
"""Faults of a broker with which an answer, or the next connection, may take as long as ``connect_timeout``."""

PROMPT_MAX = 1.5
"""Seconds in which a publish over HTTP has its answer, OK or an error, if at most a failed commit delays it."""

ALONE_MAX = 0.1
"""Seconds in which a publish has its answer if nothing of its topic is under way."""

LATE_MAX = 0.2
"""Seconds after its timeout until a call has certainly ended."""

NOT_SENT = (NotConnected, Closed, WouldWait, OptionError)
MAYBE_SENT = (ConnectionLost, PublishTimeout)
STATES: dict[type[NSQError], str] = {
    ConnectionLost: "lost with its answer due",
    BrokerError: "refused",
    NotConnected: "no connection",
    WouldWait: "no connection",
    PublishTimeout: "timed out",
}


class Publisher:
    """The common part of both.

    Attributes:
        running: the calls that have not ended, each with the scope that cancels it.
        waiting_count: steps whose calls have not begun.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.world = world
        self.nodes = list(options.get("nodes", ()))
        self.options = {key: value for key, value in options.items() if key not in {"kind", "nodes"}}
        self.running: dict[Publish, anyio.CancelScope] = {}
        self.waiting_count = 0
        self.is_running = False
        self._serial = 0
        self._leave = anyio.Event()
        self._left_receipts = False  # a program has given up to wait for one, which its producer still awaits
        self._visits = False  # after the present life another client is left at once

    async def run(self) -> None:
        """Play; return when the world has ended."""
        raise NotImplementedError

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        match step.verb:
            case "publish":
                self._publish(step)
            case "cancel":
                for scope in list(self.running.values()):
                    scope.cancel()
            case "leave":
                self._visits = step.values.get("visit", False)
                self._leave.set()

    def _make(self, step: Step) -> tuple[Publish, list[bytes]]:
        count = step.values.get("count", 1) if "multi" in step.values["how"] else 1
        names, bodies = [], []
        for _ in range(count):
            self._serial += 1
            names.append(f"{self.name}.{self._serial}")
            bodies.append(make_body(self.name, self._serial, step.values.get("size", 0)))
        # A broker whose disk fails may store a publish for some channels and refuse it, so it goes to the next broker.
        # One with fsync may store it behind another of the same commit that it refuses, so it goes there again.
        nodes = [self.world.nodes[node] for node in self.nodes]
        stores = len(nodes) > 1 or any(node.durability == "fsync" for node in nodes)
        may_repeat = self.options.get("publish_attempts", 1) > 1 or (self.world.has_disk_faults and stores)
        now = self.world.loop.time()
        publish = Publish(tuple(names), step.values["topic"], tuple(self.nodes), now, may_repeat)
        publish.attempts = self.options.get("publish_attempts", 1)
        if self.world.keeps_delays:
            publish.due = now + step.values.get("delay_us", 0) / 1e6
        return publish, bodies

    def _publish(self, step: Step) -> None:
        raise NotImplementedError

    def _start(self, publish: Publish, call: Callable[[], Awaitable[object]], step: Step) -> None:
        is_alone = self.is_alone(publish.topic)
        self.running[publish] = anyio.CancelScope()
        self.world.tasks.start_soon(self._watch, publish, call, step, is_alone)

    def is_alone(self, topic: str) -> bool:
        """Whether a publish to a topic has to wait for no other."""
        return False

    async def _watch(self, publish: Publish, call: Callable[[], Awaitable[object]], step: Step, is_alone: bool) -> None:
        """Await a call, and record how it ends."""
        world, scope = self.world, self.running[publish]
        if cancel_us := step.values.get("cancel_us", 0):
            scope.deadline = anyio.current_time() + cancel_us / 1e6
        outcome = UNKNOWN
        try:
            with scope:
                try:
                    await call()
                    outcome = OK
                except NSQError as error:
                    outcome = self.judge(error)
                    self._check_haven(publish, error, step)
                    self._check_valid(publish, error)
                    self.check_error(publish, error, step)
        finally:
            del self.running[publish]
            world.note("%s: %s %s", self.name, publish.names[0], outcome)
            world.history.end(publish, outcome)
            if outcome == OK:
                check_acknowledged(world, publish)
                self.check_granted(publish)
            lasted = world.loop.time() - publish.begun
            if outcome == OK and is_alone and lasted > ALONE_MAX and not world.history.trouble_count:
                raise Broken(27, f"{publish.names} to {publish.topic} took {lasted:.3f} seconds, with nothing before")
            self.check_time(publish, lasted, step)
            if outcome == UNKNOWN:
                self._left_receipts |= "nowait" in step.values["how"]
                self.on_unknown(publish, is_cancelled=scope.cancelled_caught)

    def _check_haven(self, publish: Publish, error: NSQError, step: Step) -> None:
        """Check that a publish with enough attempts fails only where no nsqd is healthy.

        Raises:
            Broken: it has failed, and one is.
        """
        world, attempts = self.world, self.options.get("publish_attempts", 1)
        size, limits = step.values.get("size", 0), world.plan.nodes
        accepting = [node for node in publish.nodes if size < limits[node].get("max_msg_size", math.inf)]
        havens = [node for node in accepting if node not in world.harmed]
        is_over = world.is_over or self._leave.is_set()
        # While the outbox of one is full, an attempt may go to another one that was tried before.
        may_be_full = "OUTBOX_SIZE_MAX" in world.plan.options.get("knobs", {}) and not isinstance(error, NotConnected)
        if not havens or is_over or may_be_full or attempts < len(publish.nodes):
            return
        if "nowait" in step.values["how"] or "lines" in step.values["how"]:  # these are sent once
            return
        if self.is_about_nsqd(error):
            raise Broken(34, f"{publish.names} failed, though {havens} are healthy: {error!r}")

    def _check_valid(self, publish: Publish, error: NSQError) -> None:
        """Check that no nsqd refuses a valid publish.

        Raises:
            Broken: one has.
        """
        is_refused = isinstance(error, BrokerError) or (isinstance(error, RequestRefused) and error.status < 500)
        is_valid = not (self.world.may_refuse or self.world.has_disk_faults)
        is_valid &= not (self.world.has_auth_faults and isinstance(error, REFUSALS))
        conclude(11, not (is_refused and is_valid), f"{publish.names} are valid, and were refused: {error!r}")

    def is_about_nsqd(self, error: NSQError) -> bool:
        """Return whether another nsqd might have accepted the publish."""
        return False

    def check_error(self, publish: Publish, error: NSQError, step: Step) -> None:
        """Do nothing."""

    def check_granted(self, publish: Publish) -> None:
        """Do nothing: HTTP needs no grant."""

    def check_time(self, publish: Publish, lasted: float, step: Step) -> None:
        """Do nothing."""

    def on_unknown(self, publish: Publish, *, is_cancelled: bool) -> None:
        """Do nothing."""

    def judge(self, error: NSQError) -> str:
        """Return what an error says about the messages.

        Raises:
            Broken: it says nothing.
        """
        self.world.reached.update(state for kind, state in STATES.items() if isinstance(error, kind))
        if self.world.has_disk_faults and isinstance(error, (*NOT_SENT, *MAYBE_SENT, BrokerError)):
            return UNKNOWN  # a broker may deliver what it cannot store
        if isinstance(error, (*NOT_SENT, BrokerError)):
            return REFUSED
        if isinstance(error, MAYBE_SENT):
            return UNKNOWN
        raise Broken(11, f"a publish of {self.name} ended with {error!r}")


class ProducerPlayer(Publisher):
    """A ``Producer``, which is left and made again."""

    producer: Producer | None = None
    _tally: ProducerTally | None = None
    _left = 0.0  # when the producer began to close

    async def run(self) -> None:
        HOST.set(self.name)
        life = 0
        while not self.world.is_over and self.nodes:
            life += 1
            self._leave, self._left_receipts = anyio.Event(), False
            producer = self._make_producer(life)
            self._tally = tally = ProducerTally(self.world, self.name, self.nodes)
            tally.delay_max = producer.options.reconnect_delay_max
            async with producer:
                self.producer, self.is_running = producer, True
                await self._leave.wait()
                self.is_running = False
                begun = self._left = self.world.loop.time()
                lasted_max = LEAVE_MAX if self.running or self._left_receipts else LEAVE_ALONE_MAX
            lasted = self.world.loop.time() - begun
            if lasted > lasted_max:
                raise Broken(30, f"{self.name} took {lasted:.3f} seconds to close")
            await self._check_ended()
            self._check_released(producer)
            tally.check(producer.stats())
            if self._visits:
                await visit(self.world, self.name, self._make_producer(life))
        self.producer = None

    def _make_producer(self, life: int) -> Producer:
        return Producer(
            *[f"{node}:4150" for node in self.nodes],
            clock=make_clock(),
            random=Random(f"{self.world.plan.seed}/{self.name}/{life}"),
            on_connection=self.world.watch_connection,
            **self.options,
        )

    async def _check_ended(self) -> None:
        """Check that each call has its outcome when the producer has closed.

        Raises:
            Broken: one has none.
        """
        before = list(self.running)
        await pass_time(ALONE_MAX if before else 0)
        left = [publish.names for publish in before if publish in self.running]
        conclude(30, not left or self.world.is_over, f"{left} have no outcome, and their producer has closed")

    def _check_released(self, producer: Producer) -> None:
        stats = producer.stats()
        if not self.running and (stats.outstanding_bytes or stats.waiting_count):
            raise Broken(24, f"{self.name} has closed with {stats}")

    @property
    def is_connected(self) -> bool:
        return self.producer is not None and all(nsqd.is_connected for nsqd in self.producer.stats().nsqds)

    @property
    def _is_always_connected(self) -> bool:
        """Whether it waits for no connection, nor for space, and no disk is slow."""
        verbs = {step.verb for step in self.world.plan.steps}
        has_faults = self.world.has_link_faults or not verbs.isdisjoint(DELAYING_FAULTS)
        return self.is_connected and not (
            has_faults or self.world.may_refuse or "max_outstanding_bytes" in self.options
        )

    def is_alone(self, topic: str) -> bool:
        """Whether it is connected, no publish to the topic was cancelled or waits, and no other topic may matter."""
        world = self.world
        return (
            self.is_connected
            and not (self._tally is not None and self._tally.has_cancelled)
            and "max_outstanding_bytes" not in self.options
            and not (world.may_refuse or world.has_link_faults or world.has_disk_faults)
            and all(publish.topic != topic for publish in self.running)
        )

    def on_unknown(self, publish: Publish, *, is_cancelled: bool) -> None:
        if self._tally is not None:
            self._tally.has_cancelled = True
            if is_cancelled:
                state = "cancelled with its answer due" if self._tally.waits(publish) else "cancelled before it is sent"
                self.world.reached.add(state)

    def check_error(self, publish: Publish, error: NSQError, step: Step) -> None:
        """Check that an error says whether a publish may have arrived, and that one does not outlast the producer.

        Raises:
            Broken: it says something else, or the publish does.
        """
        if self._tally is None:
            return
        self.check_sent(self._tally, publish, error)
        if isinstance(error, RETRIABLE) and not isinstance(error, MAYBE_SENT) and self._is_always_connected:
            lasted = self.world.loop.time() - publish.begun  # it had to wait for no connection
            is_soon = lasted < self.options["connect_timeout"]
            conclude(27, is_soon, f"{publish.names} was refused after {lasted:.3f} seconds: {error!r}")
        if step.values["how"] != "publish nowait" or not self._tally.is_calm or self.world.has_disk_faults:
            return
        now = self.world.loop.time()
        if isinstance(error, Closed):
            is_late = now > self._left + CLOSE_MAX
            conclude(30, is_late, f"{publish.names} were accepted and not sent before the end")
        elif isinstance(error, NotConnected) and "linger" in self.options and self._tally.were_refused:
            has_waited = now >= publish.begun + self.options["connect_timeout"]  # it is sent again, on a new connection
            conclude(34, has_waited, f"{publish.names} failed with the messages that were sent together: {error!r}")

    def check_time(self, publish: Publish, lasted: float, step: Step) -> None:
        """Check that a call that waits ends at its timeout.

        Raises:
            Broken: it has not.
        """
        limit = step.values.get("timeout_us", 0) / 1e6 or self.options.get("publish_timeout", 0)
        is_right = not limit or "nowait" in step.values["how"] or lasted <= limit + LATE_MAX
        conclude(30, is_right, f"{publish.names} took {lasted:.3f} seconds, and has a timeout of {limit:g}")

    def check_granted(self, publish: Publish) -> None:
        """Check that the producer had a grant.

        Raises:
            Broken: it had none.
        """
        self.world.grants.check_publish(publish, self.options.get("auth_secret", ""))

    @staticmethod
    def check_sent(tally: ProducerTally, publish: Publish, error: NSQError) -> None:
        """Check that an error says whether a publish may have arrived."""
        if isinstance(error, ConnectionLost):
            conclude(35, tally.was_sent(publish), f"{publish.names} were not sent: {error!r}")
        if isinstance(error, (*RETRIABLE, *NOT_SENT)) and not isinstance(error, MAYBE_SENT):
            conclude(2, not tally.may_have_arrived(publish), f"{publish.names} may have arrived: {error!r}")

    def is_about_nsqd(self, error: NSQError) -> bool:
        """Return whether another nsqd might have accepted it; one that is too large ends the connection of others."""
        return isinstance(error, (*RETRIABLE, NotConnected)) and not self.world.may_refuse

    def _publish(self, step: Step) -> None:
        if self.producer is None:
            return
        publish, bodies = self._make(step)
        self.world.history.begin(publish)
        self.world.note("%s: %s %s to %s", self.name, step.values["how"], publish.names, publish.topic)
        values = step.values
        if "nowait" in values["how"]:
            self._publish_nowait(publish, bodies, step)
            return
        timeout = values["timeout_us"] / 1e6 if values.get("timeout_us") else None
        self._start(publish, lambda: self._call(publish, bodies, step, timeout), step)
        if values.get("cancel_at_answer") and self._tally is not None:
            self._tally.cancel_at[publish.names[0]] = self.running[publish]

    async def _call(self, publish: Publish, bodies: list[bytes], step: Step, timeout: float | None) -> None:
        assert self.producer is not None or self.world.is_over
        if self.producer is None:
            raise Closed("it has ended")
        topic, key = publish.topic, step.values.get("key")
        match step.values["how"]:
            case "multi":
                await self.producer.multi_publish(topic, bodies, key=key, timeout=timeout)
            case "deferred":
                delay = step.values.get("delay_us", 0) / 1e6
                await self.producer.deferred_publish(topic, bodies[0], delay, key=key, timeout=timeout)
            case _:
                await self.producer.publish(topic, bodies[0], key=key, timeout=timeout)

    def _publish_nowait(self, publish: Publish, bodies: list[bytes], step: Step) -> None:
        assert self.producer is not None
        try:
            match step.values["how"]:
                case "multi nowait":
                    receipt = self.producer.multi_publish_nowait(publish.topic, bodies)
                case "deferred nowait":
                    delay = step.values.get("delay_us", 0) / 1e6
                    receipt = self.producer.deferred_publish_nowait(publish.topic, bodies[0], delay)
                case _:
                    receipt = self.producer.publish_nowait(publish.topic, bodies[0])
        except NSQError as error:
            self.world.history.end(publish, self.judge(error))
            return
        self._start(publish, receipt.wait, step)


class HTTPPlayer(Publisher):
    """An ``HTTPProducer``."""

    is_connected = True
    producer: HTTPProducer | None = None

    async def run(self) -> None:
        HOST.set(self.name)
        if self.nodes:
            self.producer = HTTPProducer(*[f"{node}:4151" for node in self.nodes], **self.options)
            self.is_running = True
            await self.world.ended.wait()
            self.is_running = False

    def _publish(self, step: Step) -> None:
        if self.producer is None:
            return
        publish, bodies = self._make(step)
        self.world.history.begin(publish)
        self.world.note("%s: %s %s to %s", self.name, step.values["how"], publish.names, publish.topic)
        self._start(publish, lambda: self._call(publish, bodies, step), step)

    async def _call(self, publish: Publish, bodies: list[bytes], step: Step) -> None:
        assert self.producer is not None
        HOST.set(self.name)
        match step.values["how"]:
            case "multi":
                await self.producer.multi_publish(publish.topic, bodies)
            case "multi lines":
                daemon = Daemon(f"{publish.nodes[0]}:4151", connect_timeout=2.0, request_timeout=5.0, body_max=1 << 20)
                await daemon.request("POST", "/mpub", {"topic": publish.topic}, body=b"\n".join(bodies))
            case "deferred":
                await self.producer.deferred_publish(publish.topic, bodies[0], step.values.get("delay_us", 0) / 1e6)
            case _:
                await self.producer.publish(publish.topic, bodies[0])

    def check_time(self, publish: Publish, lasted: float, step: Step) -> None:
        """Check that a publish has had its answer soon.

        Raises:
            Broken: it has not.
        """
        if lasted > PROMPT_MAX and not any(map(self._delays, self.world.plan.steps)):
            raise Broken(27, f"{publish.names} over HTTP took {lasted:.3f} seconds")

    def _delays(self, step: Step) -> bool:
        is_of_other = "/" in step.who and step.who.partition("/")[0] != self.name
        return step.verb in DELAYING_FAULTS or (step.verb in LINK_FAULTS and not is_of_other)

    def is_about_nsqd(self, error: NSQError) -> bool:
        return self.judge(error) == UNKNOWN

    def judge(self, error: NSQError) -> str:
        refused = isinstance(error, OptionError) or (isinstance(error, RequestRefused) and error.status < 500)
        return REFUSED if refused else UNKNOWN
