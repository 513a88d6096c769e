"""A broker whose power is cut again and again.

Publishers and consumers connect and leave; topics and channels are created, paused, emptied and deleted; syncs run
while others act; files are many and small; and the end comes in the middle of any operation on the disk, also of a
start or a stop. After each restart the checks of ``promises`` have to hold. ``Machine`` is one run of a broker, from a
start to a power cut; ``World`` acts on it at random, cuts its power, and checks its files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random

import attrs

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.wire.commands import encode_deferred_publish, encode_multi_publish, encode_publish
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.broker.core.disk.disks import Ended
from tests.simulation.by_hand import Committer, Disk
from tests.simulation.promises import CHANNELS, TOPIC, Ledger, Publish, WatchedStorage

MS = 1_000_000
TOPICS = (b"t", b"u")
WAITS_MS = (0, 1, 1, 20, 300, 3_000)


@attrs.define(eq=False)
class Client:
    """One connection, whose input is split into frames."""

    session: Session
    topic: bytes = b""
    channel: bytes = b""
    waiting: list[Publish] = attrs.field(factory=list)
    held: list[tuple[bytes, bytes]] = attrs.field(factory=list)  # id and body

    def frames(self, now_ns: int) -> Iterator[tuple[int, bytes]]:
        self.session.process_input(now_ns)
        data = self.session.data_to_send()
        position = 0
        while position < len(data):
            size, kind = struct.unpack_from(">ii", data, position)
            yield kind, data[position + 8 : position + 4 + size]
            position += 4 + size


class Machine:
    """One run of a broker on a disk, with the real persistence."""

    def __init__(self, disk: Disk, options: BrokerOptions, now_ns: int) -> None:
        self._committer = Committer(disk, options, Random(0), (0,), WatchedStorage)
        self.storage = self._committer.persistence.storage
        self.broker = Broker(options, Random(0), self.storage)
        self._committer.start(self.broker, now_ns)

    @property
    def has_work(self) -> bool:
        """Whether names have to be written, or messages to be synced."""
        self._committer.persistence.check(self.broker)
        return not self._committer.is_idle

    def sync(self, now_ns: int) -> Iterator[None]:
        """Save and sync until all is done; it yields where others may act."""
        while not self._committer.is_idle:
            self._committer.step(now_ns)
            yield

    def stop(self) -> None:
        """End as a broker does after SIGTERM."""
        self._committer.stop(self.broker)

    def drop(self) -> None:
        """End as a process that is killed; its disk was copied before."""
        self._committer.drop()

    def contents(self) -> dict[tuple[bytes, bytes], set[bytes]]:
        """Take out all that there is."""
        found: dict[tuple[bytes, bytes], set[bytes]] = {}
        for topic in self.broker.topics.values():
            queues = {TOPIC: topic.queue, **{name: each.queue for name, each in topic.channels.items()}}
            for place, queue in queues.items():
                bodies = found.setdefault((topic.name, place), set())
                while queue:
                    bodies.update(frame[FRAME_HEADER_LENGTH:] for frame in queue.take(100, 1 << 20))
        return found


class World:
    """One broker, its clients and its failures, from a seed.

    Args:
        seed: decides all.
        tell: called with what happens, to see why a seed fails.
        durability: ``fsync``, or ``nsqd`` for the ordinary mode.
    """

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None, *, durability: str = "fsync") -> None:
        self.random = random = Random(seed)
        self.now_ns = 1_700_000_000 * 1000 * MS
        self.options = BrokerOptions(
            durability=durability,
            mem_queue_size=random.choice((0, 2, 10)),
            sync_every=random.choice((1, 5, 40)),
            max_bytes_per_file=random.choice((150, 400, 400, 2_000)),
            sync_timeout_ns=random.choice((10, 100, 2_000)) * MS,
            msg_timeout_ns=random.choice((500, 60_000)) * MS,
        )
        self.ledger = Ledger()
        self.disk = Disk()
        self._tell = tell
        self._number = 0
        self._machine: Machine | None = None
        self._clients: list[Client] = []
        self._sync: Iterator[None] | None = None
        self._dropped: set[bytes] = set()  # of topics whose deletion the commit that runs covers
        self._name_sync_count = 0  # when it began

    def run(self, runs: int, steps: int) -> None:
        """Run the broker, and cut its power, so many times."""
        for _ in range(runs):
            self._live(self.random.randint(steps // 3, steps))
            self._restart()

    def _note(self, text: str, *values: object) -> None:
        if self._tell is not None:
            self._tell(text % values)

    # ---- start and end -----------------------------------------------------------------------------------------

    def _live(self, steps: int) -> None:
        random = self.random
        if random.random() < 0.5:  # in the middle of anything; else between two steps
            self.disk.end_after(random.randint(0, 8 * steps))
        self._machine = None
        try:
            self._machine = Machine(self.disk, self.options, self.now_ns)
            for _ in range(steps):
                self._step(self._machine)
            if random.random() < 0.2:
                self._note("stop")
                self._machine.stop()
        except Ended:
            self._note("ended in an operation")

    def _restart(self) -> None:
        random = self.random
        how = {name: random.random() < 0.3 for name in ("in_order", "zeros", "sectors")}
        killed = random.random() < 0.2
        self._note("%s", "killed" if killed else f"power cut {how}")
        self.disk = Disk((self.disk.kill() if killed else self.disk.power_cut(random, **how)).files)
        if self._machine is not None:
            self._machine.drop()
        for name, data in self.disk.files.items():
            self._note("  %s %d %s", name, len(data), data if "meta" in name else "")
        self._clients.clear()
        self._sync = None
        self.ledger.unanswered.clear()
        self.ledger.deleting.clear()
        self.ledger.acknowledged.clear()  # channels whose names were not saved are lost
        self._dropped = set()
        self.now_ns += 1000 * MS  # ids contain the time, and a start takes longer than they can be ahead of it
        if self.options.durability == "fsync":
            found = Machine(Disk(self.disk.files), self.options, self.now_ns)
            self.ledger.check(found.contents())
            found.drop()
        elif self._machine is not None and isinstance(self._machine.storage, WatchedStorage):
            self._machine.storage.check(self.disk, killed=killed)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _step(self, machine: Machine) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.35:
            self._publish(machine)
        elif chance < 0.55:
            self._consume(machine)
        elif chance < 0.60:
            self._administer(machine)
        elif chance < 0.62 and self._clients:
            self._leave(machine, random.choice(self._clients))
        elif chance < 0.85:
            self._go_on_with_sync(machine)
        else:
            self._wait(machine, random.choice(WAITS_MS) * MS)
        machine.broker.settle(self.now_ns)
        self._listen(machine)

    def _wait(self, machine: Machine, time_ns: int) -> None:
        end_ns = self.now_ns + time_ns
        broker = machine.broker
        while (due_ns := broker.next_deadline()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            broker.handle_deadline(self.now_ns)
        self.now_ns = end_ns

    def _go_on_with_sync(self, machine: Machine) -> None:
        if self._sync is None:
            if not machine.has_work:
                return
            self._note("sync")
            self._sync = machine.sync(self.now_ns)
            self._dropped = set(self.ledger.deleting)
            self._name_sync_count = self.disk.name_sync_count
        for _ in range(self.random.choice((1, 1, 2, 100))):
            try:
                next(self._sync)
            except StopIteration:
                self._note("synced")
                self._sync = None
                if self.disk.name_sync_count > self._name_sync_count:  # a commit, and not the writing of names alone
                    self.ledger.deleting -= self._dropped
                    self.ledger.deleted |= self._dropped
                break

    # ---- clients -------------------------------------------------------------------------------------------------

    def _connect(self, machine: Machine) -> Client:
        client = Client(machine.broker.open_session("client:1", self.now_ns))
        client.session.receive_data(b"  V2", self.now_ns)
        self._clients.append(client)
        return client

    def _leave(self, machine: Machine, client: Client) -> None:
        self._clients.remove(client)
        machine.broker.close_session(client.session, self.now_ns)

    def _publish(self, machine: Machine) -> None:
        random = self.random
        publishers = [client for client in self._clients if not client.channel]
        client = random.choice(publishers) if len(publishers) > 2 else self._connect(machine)
        data = b""
        for _ in range(random.choice((1, 1, 1, 3))):
            bodies = [self._body() for _ in range(random.choice((1, 1, 2, 7)))]
            topic = random.choice(TOPICS)
            if len(bodies) > 1:
                data += encode_multi_publish(topic, bodies)
            elif random.random() < 0.3:
                data += encode_deferred_publish(topic, bodies[0], random.choice((1, 100, 5_000)))
            else:
                data += encode_publish(topic, bodies[0])
            found = machine.broker.topics.get(topic)
            client.waiting.append(self.ledger.publish(topic, bodies, set(found.channels) if found else set()))
            self._note("publish to %s: %s", topic, bodies)
        client.session.receive_data(data, self.now_ns)

    def _body(self) -> bytes:
        self._number += 1
        return b"%d" % self._number + b"." * self.random.choice((0, 0, 10, 90, 200))

    def _consume(self, machine: Machine) -> None:
        random = self.random
        consumers = [client for client in self._clients if client.channel]
        if len(consumers) < 2 or random.random() < 0.1:
            client = self._connect(machine)
            client.topic, client.channel = random.choice(TOPICS), random.choice(CHANNELS)
            data = b"SUB %s %s\nRDY %d\n" % (client.topic, client.channel, random.choice((1, 5, 100)))
            self._note("%s", data)
            client.session.receive_data(data, self.now_ns)
            return
        client = random.choice(consumers)
        for _ in range(random.choice((1, 3, 100))):
            if client.held:
                message_id, body = client.held.pop(random.randrange(len(client.held)))
                client.session.receive_data(self._answer(client, message_id, body), self.now_ns)

    def _answer(self, client: Client, message_id: bytes, body: bytes) -> bytes:
        random = self.random
        chance = random.random()
        if chance < 0.7:
            self._note("FIN %s of %s:%s", body, client.topic, client.channel)
            self.ledger.finish(client.topic, client.channel, body)
            return b"FIN %s\n" % message_id
        if chance < 0.9:
            return b"REQ %s %d\n" % (message_id, random.choice((0, 0, 10, 2_000)))
        return b"TOUCH %s\n" % message_id if chance < 0.95 else b"NOP\n"

    def _listen(self, machine: Machine) -> None:
        for client in list(self._clients):
            for kind, data in client.frames(self.now_ns):
                if kind == 2:
                    client.held.append((data[10:26], data[26:]))
                elif data == b"OK" and client.waiting:
                    publish = client.waiting.pop(0)
                    self._note("OK for %s", publish.bodies)
                    self.ledger.acknowledge(publish)
                else:
                    assert kind == 0 or data.startswith((b"E_FIN", b"E_REQ", b"E_TOUCH")), data
            if client.session.ended:
                self._leave(machine, client)

    # ---- from outside ------------------------------------------------------------------------------------------

    def _administer(self, machine: Machine) -> None:
        random, broker, ledger = self.random, machine.broker, self.ledger
        name = random.choice(TOPICS)
        topic = broker.topics.get(name)
        if topic is None:
            broker.topics.get_or_create(name)
            return
        channel_name = random.choice(CHANNELS)
        channel = topic.channels.get(channel_name)
        what = random.choice(("delete", "empty", "pause", "unpause", "unpause", "create"))
        is_topic = random.random() < 0.3
        self._note("%s %s %s", what, name, b"" if is_topic else channel_name)
        if is_topic:
            if what == "delete":
                ledger.delete_topic(name)
                broker.delete_topic(name)
            elif what == "empty":
                ledger.forget(name, *CHANNELS)  # messages of a channel may still be in the topic
                topic.empty()
            elif what == "pause":
                topic.pause()
            else:
                topic.unpause(self.now_ns)
        elif channel is None:
            topic.channel(channel_name, self.now_ns)
        elif what == "delete":
            ledger.delete_channel(name, channel_name)
            broker.delete_channel(name, channel_name)
        elif what == "empty":
            ledger.forget(name, channel_name)
            channel.empty()
        elif what == "pause":
            channel.pause()
        else:
            channel.unpause()
