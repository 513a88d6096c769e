"""A broker of a world, through all its lives: its options, its disk, its clock, and the checks of its state.

The oracle follows one life command by command. At a restart it continues with the messages that the new broker has
found, after a comparison with the promised ones: all of them after a stop, and those of ``promises`` after a kill or a
power cut. With faults of the disk there is no oracle, since a broker may then refuse a message that it has no room
for, or a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.testing.link.faults import Faults
from tests.broker.core.disk.disks import Ended
from tests.simulation import contents, data_path
from tests.simulation.admin import administer, start_topic
from tests.simulation.broken import Broken, conclude
from tests.simulation.by_hand import Committer, Disk
from tests.simulation.counts import check_counts, check_reports
from tests.simulation.deliveries import Deliveries
from tests.simulation.endings import Endings
from tests.simulation.foreign import refuses_commands
from tests.simulation.history import History
from tests.simulation.invariants import check_bodies, check_end, check_later, check_node
from tests.simulation.network import END, MS
from tests.simulation.oracle import Oracle
from tests.simulation.parts import give_parts
from tests.simulation.promises import WatchedStorage
from tests.simulation.restored import find_orphans, restore

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.topic import Topic
    from nsqkit.wire.commands import Command
    from tests.simulation.connection import Connection
    from tests.simulation.foreign import Refusal
    from tests.simulation.lookup.announcer import Announcer
    from tests.simulation.world import World

COMMIT_DELAYS_NS = (0, 0, MS // 10, MS, 20 * MS)
COUNTS_EVERY = 8  # checks

P = ParamSpec("P")
_options = cache(BrokerOptions)


class Node:
    """One broker.

    Args:
        world: its world.
        name: its name in the plan.
        options: the options of its broker, and ``disk``, ``disk_faults``.

    Attributes:
        broker: the running one, None while it is down.
        oracle: of this life; None with faults of the disk.
        ids: the bodies of all ids of a topic, over all lives.
        announcer: announces it to the nsqlookupds, if there are any.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world, self.name = world, name
        self._has_disk_faults = bool(options.pop("disk_faults", False))
        self._options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        self.options = _options(**self._options)
        self.agenda_ns: int | None = None
        self.faults = Faults()
        self.links: dict[Session, Connection] = {}
        self.broker: Broker | None = None
        self.announcer: Announcer | None = None
        self.oracle: Oracle | None = None
        has_disk = options.get("durability", "memory") != "memory"
        self.disk = Disk(note=world.disk_note(name), clock=lambda: self.now_ns) if has_disk else None
        self.history = History(self.options.durability == "fsync" and not world.identity.sample_rate)
        self.deliveries = Deliveries(is_fair=self.options.timing == "exact" and not self.options.enable_experiments)
        self.accepted: set[bytes] = set()
        self.finished_count = self.refuses_until_ns = self.resume_ns = 0
        self.is_touched = self.needs_check = False
        self._guilty: set[Session] = set()  # whose client made a mistake, or has gone
        self._endings = Endings()
        self._committer: Committer | None = None
        self._random = Random(f"{world.plan.seed}/{name}")
        self._check_count = self._offset_ns = 0
        self._stopped_with: Counter[tuple[bytes, bytes, bytes]] | None = None
        self._stopped_names: dict[bytes, object] = {}
        self._stopped_times: contents.Times = Counter()
        self._watched: WatchedStorage | None = None
        self._was_killed, self._is_whole, self._was_ever_killed, self._is_torn = True, True, False, False
        # An oracle models neither the delays of nsqd's timing nor the messages that a sample leaves out.
        self._is_exact = self.options.timing == "exact" and not world.identity.sample_rate
        self.ids: dict[bytes, dict[bytes, bytes]] = {}
        self.start({})

    @property
    def now_ns(self) -> int:
        return self._world.now_ns + self._offset_ns

    @property
    def accepts(self) -> bool:
        return self.broker is not None and self._world.now_ns >= self.refuses_until_ns

    @property
    def refuses_commands(self) -> bool:
        """Whether it refuses commands of clients that make no mistake."""
        return refuses_commands(self.options)

    @property
    def is_committing(self) -> bool:
        return self._committer is not None and not self._committer.is_idle

    @property
    def is_suspended(self) -> bool:
        return self._world.now_ns < self.resume_ns

    # ---- lives -------------------------------------------------------------------------------------------------------

    def start(self, values: dict[str, Any]) -> None:
        """Start the broker, unless it runs; with a clock that was set by ``clock_us``, and changed options."""
        if self.broker is not None:
            return
        self._offset_ns += 1000 * values.get("clock_us", 0)
        self._options |= values.get("options", {})
        self.options = _options(**self._options)
        random = Random(f"{self._world.plan.seed}/{self.name}/{self._random.random()}")
        if self.disk is None:
            self.broker = Broker(self.options, random)
            self._begin_life()
            return
        # A watched queue does not model a write that fails.
        storage_type = DiskStorage if self._has_disk_faults else WatchedStorage
        committer = Committer(self.disk, self.options, random, COMMIT_DELAYS_NS, storage_type)
        broker = Broker(self.options, random, committer.persistence.storage)
        try:
            committer.start(broker, self.now_ns)
        except Ended:
            committer.drop()
            self._end_life(killed=False)
            return
        except OSError as error:
            self._world.note("%s cannot start: %s", self.name, error)
            return
        self.broker, self._committer = broker, committer
        storage = committer.persistence.storage
        with self.disk.checked():
            self._check_found(broker)
        self._watched = storage if isinstance(storage, WatchedStorage) else None
        self._begin_life()

    def _begin_life(self) -> None:
        assert self.broker is not None
        self.broker.log_commands(self.options.log_level == "debug")
        self.oracle = None
        if self._is_whole and not self._has_disk_faults and self._is_exact:
            self.oracle = Oracle(self.options, has_disk=self.disk is not None)
            self.oracle.is_torn = self._is_torn
            if self.disk is None:
                self.ids = {}
            with nullcontext() if self.disk is None else self.disk.checked():
                restore(self.broker, self.oracle, self.ids)
                self.oracle.deadline(self.now_ns)
                if self.disk is not None and not find_orphans(self.disk, self.options, self.oracle):
                    self.oracle = None
        self._world.touch(self)

    def _check_found(self, broker: Broker) -> None:
        # After a power cut, depths count messages that are lost, until they are read.
        try:
            self._is_whole = all(len(queue) == len(queue.messages()) for queue in contents.queues_of(broker))
            found = contents.found_in(broker)
        except OSError:
            if not self._is_torn and not self._has_disk_faults:
                raise
            self._is_whole = False
            return
        if not (self._is_torn or self._has_disk_faults or self.options.keep_deferred):
            contents.check_depths(broker)
        if self._stopped_with is not None and not self._has_disk_faults:
            times = contents.times_of(broker)
            conclude(16, self._stopped_times <= times, f"a stop changed the times {self._stopped_times} to {times}")
            # With fsync, a finished deferred message may come back; after a power cut, files that were removed.
            kept = found & self._stopped_with if self._is_torn or self.options.durability == "fsync" else found
            conclude(14, contents.names_of(broker) == self._stopped_names, f"a stop changed {self._stopped_names}")
            conclude(15, kept == self._stopped_with, f"a stop changed {self._stopped_with} to {found}")
        self._stopped_with = None
        self.history.check(found)
        if self._watched is not None:
            assert self.disk is not None
            self._watched.check(self.disk, killed=self._was_killed)
            self._watched = None

    def stop(self) -> None:
        """End as a broker does after SIGTERM."""
        if self.broker is None:
            return
        if self._committer is not None:
            kept = None if self.oracle is None else contents.expected_after_stop(self.oracle)
            to_find = None if self.oracle is None else contents.expected_after_stop(self.oracle, is_started=True)
            self._stopped_names = contents.names_of(self.broker)
            self._stopped_times = Counter()
            if self.oracle is not None and self.options.keep_deferred:
                self._stopped_times = contents.expected_times(self.oracle)
            try:
                self._committer.stop(self.broker)
            except Ended:
                self._end_life(killed=False)
                return
            self._stopped_with = to_find
            self._watched = None
            self._check_stopped(kept)
        self._end_life(killed=True, is_clean=self.disk is not None and not self._has_disk_faults)

    def _check_stopped(self, kept: Counter[tuple[bytes, bytes, bytes]] | None) -> None:
        if self.disk is not None and not self._has_disk_faults and not self._is_torn:
            is_durable, left = self.options.durability == "fsync", self.disk.left if self._was_ever_killed else None
            data_path.check_stopped(self.disk.files, kept, is_durable=is_durable, left=left)

    def check_removed(self, queue: bytes, check: Callable[..., None]) -> None:
        """Check that a queue has no files any more; after a power cut, a file may be there that was removed."""
        if self.disk is not None and not self._has_disk_faults and not self._is_torn:
            has_temporary = self._was_ever_killed or self.is_committing
            check(self.disk.files, queue.decode(), has_temporary=has_temporary)

    def crash(self, *, killed: bool) -> None:
        """End without a word: the process was killed, or the power was cut."""
        if self.broker is not None:
            self._stopped_with = None
            self._end_life(killed=killed)

    def _end_life(self, *, killed: bool, is_clean: bool = False) -> None:
        self._world.note("%s is down", self.name)
        self.broker = self.oracle = None
        self._was_killed = killed
        self._was_ever_killed |= not is_clean
        self._is_torn |= not killed and self.disk is not None
        if self.disk is not None:
            how = {name: self._random.random() < 0.3 for name in ("in_order", "zeros", "sectors")}
            self.disk = self.disk.after(self.disk.kill() if killed else self.disk.power_cut(self._random, **how))
        if self._committer is not None:
            self._committer.drop()
            self._committer = None
        self.history.crash({} if killed or self.disk is None else self.disk.files)
        self.deliveries.end_life(is_clean=is_clean, is_durable=self.options.durability == "fsync")
        self.deliveries.may_repeat |= self.disk is not None and not is_clean
        links, self.links = list(self.links.values()), {}
        self._endings.clear()
        for link in links:
            link.lose_broker()
        self._world.touch(self)

    def _survive(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function, in which the disk may end the process, and nothing else may."""
        try:
            function(*args, **kwargs)
        except Ended:
            self.crash(killed=False)
        except OSError as error:
            raise Broken(25, f"{self.name} has ended by {error!r}") from error

    # ---- faults ------------------------------------------------------------------------------------------------------

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        disk, now_ns = self.disk, self._world.now_ns
        match verb:
            case "kill" | "power cut":
                self.crash(killed=verb == "kill")
            case "stop":
                self.stop()
            case "start":
                self.start(values)
            case "suspend":
                self.resume_ns = max(self.resume_ns, now_ns + 1000 * values["for_us"])
            case "refuse":
                self.refuses_until_ns = now_ns + 1000 * values["for_us"]
            case _ if verb.endswith("disk"):
                if disk is not None and disk.act(verb, values, is_faulty=self._has_disk_faults):
                    self.history.promise_nothing()
            case _ if verb.endswith(("channel", "topic")):
                with suppress(*([OSError] if self._has_disk_faults else [])):
                    try:
                        administer(self, verb, values["topic"].encode(), values["channel"].encode())
                    except Ended:
                        self.crash(killed=False)
        self._world.touch(self)

    def start_topic(self, topic: Topic, names: list[bytes]) -> None:
        """Start a new topic with the channels that nsqlookupds list."""
        self._survive(start_topic, self, topic, names)

    # ---- connections -------------------------------------------------------------------------------------------------

    def open_session(self, link: Connection) -> Session:
        """Accept a connection."""
        assert self.broker is not None
        session = self.broker.open_session(link.address, self.now_ns)
        self.links[session] = link
        if self.oracle is not None:
            self.oracle.opened(session)
        return session

    def receive(self, session: Session, data: bytes, commands: list[Command], refused: Refusal | None = None) -> None:
        """Process bytes of a client, which are these commands, and perhaps one that is refused."""
        self.execute(session, commands, refused)
        self._survive(self._receive, session, data)

    def execute(self, session: Session, commands: list[Command], refused: Refusal | None = None) -> None:
        """Record the commands that the broker is about to execute, and the one that it has to refuse."""
        link, broker, now_ns = self.links[session], self.broker, self.now_ns
        assert broker is not None
        for command in commands:
            link.owner.before_command(link, command)
            if self._world.watch is not None:
                self._world.watch.command(self, session, command, self._world.now_ns)
            self.finished_count += command.verb == b"FIN"
            if self.oracle is not None:
                self.oracle.command(session, command, now_ns)
            self.accepted.update(self.history.command(session, command, broker))
            self.deliveries.command(session, command)
        if refused is not None:
            self._guilty.add(session)
            if self.oracle is not None:
                self.oracle.refused(session, refused)

    def _receive(self, session: Session, data: bytes) -> None:
        if data == END:
            session.receive_eof(self.now_ns)
        else:
            session.receive_data(data, self.now_ns)
            while session.has_input:
                session.process_input(self.now_ns)
        self.settle_now()

    def end_input(self, session: Session, error: Any) -> None:
        """Process the end of a client's bytes; ``error`` if that cut a body off."""
        self._guilty.add(session)
        if self.oracle is not None:
            self.oracle.end(session, error)
        self._survive(self._receive, session, END)

    def settle(self) -> None:
        """Send the broker's output, and close the sessions that it has ended."""
        if self.broker is not None:
            self._survive(self.settle_now)

    def settle_now(self) -> None:
        """Do as ``settle``; the disk may end the process."""
        broker, now_ns = self.broker, self.now_ns
        assert broker is not None
        give_parts(self._world.plan, broker, self.oracle, now_ns)
        broker.settle(now_ns)
        while sessions := broker.take_sessions():
            for session in sessions:
                if session in self.links:
                    self._send(session)
                    if session.ended:
                        self._end_session(session, now_ns)
            broker.settle(now_ns)
        if self._committer is not None:
            self._committer.persistence.check(broker)
        self._world.touch(self)

    def _send(self, session: Session) -> None:
        link, broker = self.links[session], self.broker
        assert broker is not None
        while (data := session.data_to_send()) or session.has_input:
            frames = link.read_frames(data)
            link.note_frames(frames)
            if self.oracle is not None:
                self.oracle.frames(session, frames, self.now_ns)
            if self._world.watch is not None:
                self._world.watch.frames(self, session, frames, self._world.now_ns)
            self.history.frames(session, frames, self.disk)
            self.deliveries.frames(session, frames)
            if data:  # END, which is empty, is sent by _close
                link.answer(data)
            session.process_input(self.now_ns)

    def _end_session(self, session: Session, now_ns: int) -> None:
        """Close a session that has ended, perhaps only when its client has read the last bytes."""
        if self.links[session].close_ns <= self._world.now_ns:
            self._close(session, now_ns)
        else:
            self._endings[session] = self.links[session]
            self.deliveries.ended(session)

    def _close(self, session: Session, now_ns: int) -> None:
        assert self.broker is not None
        link = self.links.pop(session)
        if self._world.watch is not None:
            self._world.watch.ended(self, session, self._world.now_ns)
        self._world.note("%s ends %s: %s", self.name, link.name, events := session.events())
        link.answer(END)
        if (is_guilty := session in self._guilty) or not self._has_disk_faults:
            client = None if self.oracle is None else self.oracle.clients[session]
            check_end(link.name, events, client, now_ns, is_guilty=is_guilty)
        self._guilty.discard(session)
        if self.oracle is not None:
            self.oracle.closed(session, now_ns)
        self.history.closed(session)
        self.deliveries.closed(session)
        self.broker.close_session(session, now_ns)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        if self.broker is None:
            return None
        due_ns = self.broker.next_deadline()
        if due_ns is not None:
            due_ns -= self._offset_ns
        commit_ns = None if self._committer is None else self._committer.next_deadline(self._world.now_ns)
        due_ns = self._endings.earliest(due_ns, commit_ns)
        return None if due_ns is None else max(due_ns, self.resume_ns)

    def handle_deadline(self, now_ns: int) -> None:
        if self.broker is not None and now_ns >= self.resume_ns:
            self._survive(self._handle_deadline, now_ns)

    def _handle_deadline(self, now_ns: int) -> None:
        broker, committer = self.broker, self._committer
        assert broker is not None
        if (due_ns := broker.next_deadline()) is not None and due_ns <= self.now_ns:
            broker.handle_deadline(self.now_ns)
            if self.oracle is not None:
                self.oracle.deadline(self.now_ns)
            self.settle_now()
            check_later(broker, self.now_ns)
        if committer is not None and (due_ns := committer.next_deadline(now_ns)) is not None and due_ns <= now_ns:
            committer.step(now_ns)
            self.settle_now()
        for session in self._endings.take_due(now_ns):
            self._close(session, self.now_ns)
            self.settle_now()

    def service(self) -> None:
        """Have the invariants checked, and changes announced."""
        self.needs_check = True
        if self.announcer is not None:
            self._world.touch(self.announcer)

    def heal(self) -> None:
        """End all faults, and start the broker if it is down."""
        self.resume_ns = self.refuses_until_ns = 0
        self.faults.clear()
        if self.disk is not None:
            self.disk.recover()
            self.disk.end_after(1 << 60)
        self.start({})
        assert self.broker is not None, f"{self.name} does not start"

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, *, whole: bool = False) -> None:
        """Check the invariants of a broker at rest."""
        self.needs_check = False
        if self._committer is not None:
            self._committer.check_names()
        if self.broker is not None and self._world.now_ns >= self.resume_ns and not whole and not self.is_committing:
            self.deliveries.check_unsent(self.broker.sessions, self.now_ns)
        if self.broker is not None and self.oracle is not None and self._world.now_ns >= self.resume_ns:
            check_node(self.broker, self.oracle, self.now_ns, may_owe=self.is_committing)
            self._check_count += 1
            if whole or self._check_count % COUNTS_EVERY == 0:
                check_counts(self.broker, self.oracle, self.now_ns)
            if whole:
                check_reports(self.broker, self.now_ns)
                with nullcontext() if self.disk is None else self.disk.checked():
                    check_bodies(self.broker, self.oracle)

    def channel_names(self, topic: str) -> list[str]:
        """Return the channels of a topic."""
        found = None if self.broker is None else self.broker.topics.get(topic.encode())
        return [] if found is None else [name.decode() for name in found.channels]

    def check_files(self) -> None:
        """Check that a drained broker has no files of messages but those that are written to, and stop it."""
        if self.disk is not None:
            if self.oracle is not None and not self._is_torn and self.options.durability == "fsync":
                data_path.check_file_counts(self.disk.files)
            if self._random.random() < 0.5:
                self.crash(killed=True)
                self.start({})
            self.stop()
            if not self._has_disk_faults and not self._is_torn:
                data_path.check_empty(self.disk.files)

    @property
    def is_drained(self) -> bool:
        """Whether no message waits, is deferred or is in flight."""
        return self.broker is not None and not self.is_committing and contents.is_empty(self.broker)
