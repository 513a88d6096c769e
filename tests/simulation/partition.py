"""Spark partitions as players: tasks whose attempts perform the actions of a ``SlotLog``, with a store in memory.

An attempt has a connection to each node and receives as the drainer of a partition does. It performs one action at a
time, and time passes in between. A plan kills attempts, starts others beside them, and stops them for longer than the
message timeout. A batch has one task for each partition of the plan; when all have their rows, the next batch begins.

FINs and TOUCHes are confirmed as the drainer does, by ``nsqkit.consumer.confirmation``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from nsqkit.consumer.confirmation import Confirming, confirm
from nsqkit.consumer.message import Message
from nsqkit.consumer.session import ConsumerSession, Opened, Received
from nsqkit.errors import FinishFailed, ProtocolError, TouchFailed
from nsqkit.spark.batch_plan import PartitionShare, SourceNode, store_plan
from nsqkit.spark.slots import slot_log
from nsqkit.spark.slots.maintenance import remove_batches
from nsqkit.spark.slots.records import DataSlot, MessageKey
from nsqkit.spark.slots.slot_log import SlotLog
from nsqkit.spark.slots.wal import PartitionWal, Wal
from nsqkit.wire.commands import BARRIER_ID, Command
from tests.simulation.batch_plans import plan_alike, plan_within
from tests.simulation.broken import Broken
from tests.simulation.network import MS
from tests.spark.slots.memory_store import MemoryStore

if TYPE_CHECKING:
    from nsqkit.consumer.message import Holder
    from tests.simulation.connection import Connection
    from tests.simulation.node import Node
    from tests.simulation.plan import Plan
    from tests.simulation.world import World

ACTION_DELAYS_NS: Final = (0, 0, MS // 10, MS, 10 * MS)
LINGER_NS: Final = 20 * MS
EMPTY_FOR_NS: Final = 400 * MS
OPEN_WITHIN_NS: Final = 5_000 * MS
RECONNECT_NS: Final = 100 * MS
REQUEUE_DELAY_MS: Final = 100
TOUCHES: Final = 4


class Attempt:
    """One attempt of a task.

    Attributes:
        is_over: it has replayed, or was killed.
    """

    def __init__(self, task: Task, number: int) -> None:
        self.task = task
        self._world, self._partitions = task.world, task.partitions
        self.agenda_ns: int | None = None
        self.is_touched = False
        self.is_over = False
        self._random = Random(f"{self._world.plan.seed}/{task.name}/{number}")
        self._name = f"{task.player}-{task.batch}-{number}"
        self._wal = task.open_wal()
        self._log = SlotLog()
        self._actions = deque(self._log.start())
        self._links: dict[str, Connection] = {}
        self._messages: dict[MessageKey, Message] = {}  # of the chunk
        self._inbox: list[Message] = []
        self._oldest_ns = 0
        self._received_ns = 0  # when a message arrived last, or the attempt began to receive
        self._received_count = 0
        self._confirming: Confirming | None = None
        self._is_touching = False
        # Half of the attempts touch what they hold. The others are too busy, so that more messages time out.
        self._touch_every_ns = self._world.plan.options["msg_timeout_ms"] * MS // TOUCHES
        self._touch_ns = self._world.now_ns if self._random.random() < 0.5 else None
        self._due_ns = self._world.now_ns
        self._reconnect_ns = 0
        self._world.touch(self)

    # ---- for connections ---------------------------------------------------------------------------------------------

    def before_command(self, connection: Connection, command: Command) -> None:
        """Check that a message which is finished is in a slot."""
        if command.verb == b"FIN":
            for message_id in command.params:
                if message_id != BARRIER_ID:
                    key = MessageKey(connection.node.name, self.task.topic, message_id)
                    self._partitions.finished(key)

    def handle_events(self, connection: Connection, events: Sequence[object]) -> None:
        """Record the messages of a connection; after the end, requeue them."""
        session = _session(connection)
        for event in events:
            if self.is_over:
                for message in list(session.held.values()):
                    session.requeue(message, 0, backoff=False)
                session.end_if_answered()
            elif isinstance(event, Opened):
                self._received_ns = self._world.now_ns  # the time without messages begins when they may come
                shares = self.task.share.connections
                session.send_ready(next(each.max_in_flight for each in shares if each.nsqd_address == session.address))
            elif isinstance(event, Received):
                if not self._inbox:
                    self._oldest_ns = self._world.now_ns
                self._received_ns = self._world.now_ns
                self._inbox += event.messages
        self._world.touch(self)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End without a word."""
        self._world.note("%s is killed", self._name)
        self.is_over = True
        for link in self._links.values():
            link.act("cut", {})
            link.machine.end(None)

    def stall(self, until_ns: int) -> None:
        """Do nothing for a while, and read nothing."""
        self._due_ns = max(self._due_ns, until_ns)
        if self._touch_ns is not None:
            self._touch_ns = max(self._touch_ns, until_ns)
        self._reconnect_ns = max(self._reconnect_ns, until_ns)
        for link in self._links.values():
            link.down.hold(until_ns)
            self._world.touch(link)
        self._world.touch(self)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        if self.is_over:
            return None
        due_ns = self._action_ns()
        return due_ns if self._touch_ns is None else min(self._touch_ns, due_ns or self._touch_ns)

    def _action_ns(self) -> int | None:
        """Return when to perform the next action; None while an answer to a barrier is awaited."""
        if self._confirming is not None:
            return self._due_ns if self._confirming.is_done else None
        if self._actions and not isinstance(self._actions[0], slot_log.Receive):
            return self._due_ns
        return max(self._due_ns, self._receive_ns())

    def _receive_ns(self) -> int:
        """Return when to do something about the messages that were received, or about their connections."""
        if len(self._inbox) >= self._chunk_max or not self._chunk_max:
            return 0
        if self._inbox:
            return self._oldest_ns + LINGER_NS
        times_ns = [self._empty_ns]
        if self._is_disconnected:
            times_ns.append(self._reconnect_ns)
        return min(times_ns)

    @property
    def _chunk_max(self) -> int:
        """The messages that the next chunk may have; 0 at the limit of the partition."""
        limit: int = self.task.share.records_max or self.task.options["messages"]
        return min(int(self.task.options["chunk"]), max(limit - self._received_count, 0))

    @property
    def _empty_ns(self) -> int:
        """When to stop because no message comes; a connection may take longer to open."""
        is_opening = any(not link.machine.is_open and not link.machine.ended for link in self._links.values())
        return self._received_ns + (OPEN_WITHIN_NS if is_opening else EMPTY_FOR_NS)

    @property
    def _is_disconnected(self) -> bool:
        names = [planned.nsqd_address for planned in self.task.share.connections]
        return any(name not in self._links or self._links[name].machine.ended for name in names)

    def service(self) -> None:
        """Nothing is to be sent: connections send for themselves."""

    def handle_deadline(self, now_ns: int) -> None:
        """Touch messages, or perform the next action."""
        if self.is_over:
            return
        if self._touch_ns is not None and self._touch_ns <= now_ns:
            self._touch_ns = now_ns + self._touch_every_ns
            self._touch_held(now_ns)
        if (due_ns := self._action_ns()) is None or due_ns > now_ns:
            return
        self._due_ns = now_ns + self._random.choice(ACTION_DELAYS_NS)
        if self._confirming is not None:
            self._confirmed(self._confirming)
        elif isinstance(self._actions[0], slot_log.Receive):
            self._receive(now_ns)
        else:
            action = self._actions.popleft()
            self._world.note("%s: %s", self._name, action)
            try:
                self._actions.extend(self._perform(action))
            except ProtocolError:
                if not self.task.is_removed:
                    raise
                self.kill()

    # ---- actions -----------------------------------------------------------------------------------------------------

    def _perform(self, action: slot_log.Action) -> list[slot_log.Action]:
        log, wal = self._log, self._wal
        match action:
            case slot_log.ReadLog():
                actions = log.log_read(wal.read_log())
                if actions and isinstance(actions[0], slot_log.Receive):
                    self._received_ns = self._world.now_ns
                return actions
            case slot_log.Touch(keys) | slot_log.FinishSlot(_, keys):
                self._is_touching = isinstance(action, slot_log.Touch)
                refusal = TouchFailed if self._is_touching else FinishFailed
                self._confirming = confirm([self._messages[key] for key in keys], self._send, refusal)
                if self._some("cut_share"):
                    self._cut()
                return []
            case slot_log.LookUp(keys):
                return log.looked_up(wal.wal.look_up(keys))
            case slot_log.Requeue(keys, delayed):
                for key in keys:
                    message = self._messages[key]
                    message.session.requeue(message, REQUEUE_DELAY_MS * delayed, backoff=False)
                self._wake()
                return []
            case slot_log.FinishDuplicates(keys):
                for key in keys:
                    self._messages[key].session.finish(self._messages[key])
                self._wake()
                return []
            case slot_log.PutSlot(number, keys, outcome):
                stored = wal.put_slot(number, DataSlot(keys, b"", outcome))
                self._partitions.stored_keys.update(keys if stored else ())
                if self._some("late_share"):
                    self._due_ns += self._world.plan.options["msg_timeout_ms"] * MS
                return log.slot_put(stored=stored)
            case slot_log.PutSeal(number, seal):
                return log.seal_put(stored=wal.put_seal(number, seal))
            case slot_log.Replay():
                self._end(action)
                return []
        raise AssertionError(action)

    def _some(self, name: str) -> bool:
        share: float = self.task.options.get(name, 0.0)
        return self._random.random() < share

    def _cut(self) -> None:
        """Cut a connection on which the answers to some commands are due."""
        link = self._random.choice(list(self._links.values()))
        link.service()
        link.act("cut", {"ways": self._random.choice(("both", "up", "down"))})

    def _receive(self, now_ns: int) -> None:
        chunk_max = self._chunk_max
        if not chunk_max or (not self._inbox and now_ns >= self._empty_ns):
            self._actions.popleft()
            self._actions.extend(self._log.seal())
            return
        if self._inbox and now_ns >= min(self._oldest_ns + LINGER_NS, self._receive_ns()):
            chunk, self._inbox = self._inbox[:chunk_max], self._inbox[chunk_max:]
            keys = self._keys(chunk)
            self._messages = dict(zip(keys, chunk, strict=True))  # of a message that arrived twice, the later delivery
            redelivered = [key for key, message in self._messages.items() if message.attempts > 1]
            touch = now_ns - chunk[0].received_ns > chunk[0].session.msg_timeout_ns // 2
            self._received_count += len(keys)
            self._actions.popleft()
            self._actions.extend(self._log.receive_chunk(keys, redelivered, touch=touch))
        elif self._is_disconnected and now_ns >= self._reconnect_ns:
            self._reconnect_ns = now_ns + RECONNECT_NS
            for planned in self.task.share.connections:
                self._connect(self._world.nodes[planned.nsqd_address])

    def _touch_held(self, now_ns: int) -> None:
        """Touch the messages with less than half of their time left."""
        for message in [*self._messages.values(), *self._inbox]:
            session = message.session
            is_due = message.deadline_ns < now_ns + session.msg_timeout_ns // 2
            if is_due and session.held.get(message.id) is message:
                session.touch(message, now_ns)
        self._wake()

    def _connect(self, node: Node) -> None:
        if not node.accepts or (node.name in self._links and not self._links[node.name].machine.ended):
            return
        session = ConsumerSession(
            self._world.identity,
            self.task.topic.encode(),
            self.task.options["channel"].encode(),
            address=node.name,
            read_timeout_ns=10_000 * MS,
            max_msg_size=1 << 20,
            now_ns=self._world.now_ns,
        )
        session.connection = self._links[node.name] = self._world.connect(self.task.player, self, node, session)

    def _keys(self, messages: Iterable[Message]) -> list[MessageKey]:
        return [MessageKey(message.session.address, self.task.topic, message.id) for message in messages]

    def _send(self, session: Holder, messages: list[Message]) -> None:
        if self._is_touching:
            for message in messages:
                session.touch(message, self._world.now_ns)
        else:
            session.finish_all(messages)

    def _confirmed(self, confirming: Confirming) -> None:
        self._confirming = None
        outcome = confirming.result()
        failed, unknown = self._keys(outcome.failed), self._keys(outcome.unknown)
        if self._is_touching:
            self._actions.extend(self._log.touched([*failed, *unknown]))
        else:
            self._actions.extend(self._log.slot_finished(failed=failed, ambiguous=bool(unknown)))

    def _wake(self) -> None:
        for link in self._links.values():
            self._world.touch(link)

    def _end(self, replay: slot_log.Replay) -> None:
        """Pass on the rows, and close the connections."""
        rows: list[MessageKey] = []
        for entry in replay.slots:
            rows += [key for key in self._wal.read_slot(entry.number).keys if key not in entry.excluded]
        self.task.end(rows)
        self.is_over = True
        for link in self._links.values():
            session = _session(link)
            for message in list(session.held.values()):
                session.requeue(message, 0, backoff=False)
            session.start_close()
            if not session.is_open:
                session.end(None)
        self._wake()


def _session(link: Connection) -> ConsumerSession:
    assert isinstance(link.machine, ConsumerSession)
    return link.machine


class Task:
    """A partition of a batch; it ends when one of its attempts has replayed."""

    def __init__(
        self, partitions: Partitions, player: str, options: dict[str, Any], batch: int, share: PartitionShare
    ) -> None:
        self.partitions, self.player, self.options, self.batch, self.share = partitions, player, options, batch, share
        self.world = partitions.world
        self.topic: str = options["topic"]
        self.name = f"{player}/{batch}"
        self.rows: list[MessageKey] | None = None
        self.attempts = [Attempt(self, 0)]

    def open_wal(self) -> PartitionWal:
        """Return the log of the partition; with ``fresh`` executors, with an index of its own."""
        wal = self.partitions.wal
        wal = Wal(wal.store, wal.wal_id) if self.options.get("fresh") else wal
        return wal.partition(self.batch, self.share.index)

    @property
    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.is_over]

    @property
    def is_removed(self) -> bool:
        """Whether the batch was removed."""
        return self.batch in self.partitions.removed

    def begin_attempt(self) -> None:
        """Try once more, or beside a live attempt."""
        if self.rows is None:
            self.attempts.append(Attempt(self, len(self.attempts)))

    def end(self, rows: list[MessageKey]) -> None:
        """Take the rows of an attempt; those of one that has slept until its batch was removed are not wanted."""
        if self.is_removed:
            return
        if self.rows is not None and self.rows != rows:
            raise Broken(33, f"{self.name} has {rows}, and had {self.rows}")
        self.rows = rows


class Partitions:
    """The batches of a Spark job, if the plan has partitions.

    Attributes:
        wal: the slots.
        stored_keys: the messages in its slots.
        channels: the topics and channels that they consume.
        removed: the batches that were removed.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.wal = Wal(MemoryStore(), "wal")
        self.stored_keys: set[MessageKey] = set()
        self.removed: set[int] = set()
        self._players = {name: player for name, player in plan.players.items() if player["kind"] == "partition"}
        self.channels = {(player["topic"], player["channel"]) for player in self._players.values()}
        self._finished: set[MessageKey] = set()
        self._tasks: list[Task] = []
        self._batch: list[Task] = []
        self._batch_count = 0
        if self._players:
            self._begin_batch()

    def _begin_batch(self) -> None:
        number, self._batch_count = self._batch_count, self._batch_count + 1
        options, now_ns = next(iter(self._players.values())), self.world.now_ns
        shares = self._plan(number, options, now_ns)
        if "retain" in options:
            horizon_ns = options["dedup_horizon_ms"] * MS
            self.removed.update(remove_batches(self.wal, number, options["retain"], horizon_ns, now_ns))
        self._batch = [
            Task(self, name, options, number, share)
            for (name, options), share in zip(self._players.items(), shares, strict=False)
        ]
        self._tasks += self._batch

    def _plan(self, number: int, options: dict[str, Any], now_ns: int) -> Sequence[PartitionShare]:
        """Store the plan of a batch, and return its partitions; without limits each consumes from each node."""
        nodes, count = [SourceNode(name, options["topic"]) for name in self.world.nodes], len(self._players)
        if "limits" in options:
            plan = plan_within(number, nodes, count, options["limits"], now_ns)
        else:
            plan = plan_alike(number, nodes, count, options["rdy"], now_ns)
        return store_plan(self.wal, plan).partitions

    def finished(self, key: MessageKey) -> None:
        """Record that an attempt finishes a message."""
        if key not in self.stored_keys:
            raise Broken(31, f"{key} is in no slot")
        self._finished.add(key)

    def act(self, player: str, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        self._go_on()
        task = next((task for task in self._batch if task.player == player), None)
        if task is None:
            return
        live = task.live
        if verb == "attempt":
            task.begin_attempt()
        elif live and verb == "kill":
            live[values["which"] % len(live)].kill()
        elif live and verb == "stall":
            live[values["which"] % len(live)].stall(self.world.now_ns + 1000 * values["for_us"])

    def _go_on(self) -> None:
        """Begin the next batch when all partitions have rows."""
        if all(task.rows is not None for task in self._batch):
            self._begin_batch()

    def settle(self, *, goes_on: bool) -> None:
        """Go on without faults, with the next batch where it is wanted; a task without an attempt is tried again."""
        if self._players:
            if goes_on:
                self._go_on()
            for task in self._batch:
                if not task.live:
                    task.begin_attempt()

    @property
    def are_done(self) -> bool:
        """Whether all attempts have ended; rows of a batch without messages do not matter."""
        return all(not task.live and task.rows is not None for task in self._tasks)

    def what_is_left(self) -> str:
        """Describe the tasks without rows."""
        return f"partitions without rows {[task.name for task in self._tasks if task.rows is None]}"

    def conclude(self) -> None:
        """Check that each finished message has a row, and only one where the plan has no stalls."""
        counts = Counter(key for task in self._tasks for key in task.rows or ())
        if lost := [key for key in self._finished if key not in counts]:
            raise Broken(32, f"{lost} were finished and have no row")
        for task in self._tasks:
            limit = task.share.records_max
            if limit is not None and len(task.rows or ()) > limit:
                raise Broken(6, f"{task.name} has {len(task.rows or ())} rows, where {limit} are allowed")
        repeated = [key for key, count in counts.items() if count > 1]
        if repeated and self.world.plan.options.get("is_exact"):
            raise Broken(32, f"{repeated} have several rows")
