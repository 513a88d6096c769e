"""A broker whose power is cut again and again.

Publishers and consumers connect and leave; topics and channels are created, paused, emptied and deleted; syncs run
while others act; files are many and small; and the end comes in the middle of any operation on the disk, also of a
start or a stop. After each restart the checks of ``promises`` have to hold, and those of ``power_rules`` always.
``World`` acts on a ``Machine`` at random, cuts its power, and checks its files. Some worlds have a disk that is full or
fails now and then, a clock that is set back, deferrals that are kept, or consumers that take a sample; some end when
all is finished, and nothing may come back then.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from random import Random

import attrs

from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.commands import encode_deferred_publish, encode_multi_publish, encode_publish
from tests.broker.core.disk.disks import Ended
from tests.simulation.broken import Broken, conclude
from tests.simulation.by_hand import Disk
from tests.simulation.damages import Damages
from tests.simulation.data_path import check_deleted, check_emptied
from tests.simulation.power_machine import Client, Machine
from tests.simulation.power_rules import Rules, all_in
from tests.simulation.promises import CHANNELS, Ledger, Publish, WatchedStorage

MS = 1_000_000
TOPICS = (b"t", b"u")
WAITS_MS = (0, 1, 1, 20, 300, 3_000)
DRAIN_ROUNDS = 60
SYNC_STEPS_MAX = 500
RARE_SHARE = 0.02  # of the steps with a disk that may fail; then it does so between the channels of a topic
DRAIN_ROUNDS_NS = 1_000 * MS, 20_000 * MS  # the first ones, and the others; some messages are deferred for ten minutes


class World:
    """One broker, its clients and its failures, from a seed.

    Args:
        seed: decides all.
        tell: called with what happens, to see why a seed fails.
        durability: ``fsync``, or ``nsqd`` for the ordinary mode.
    """

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None, *, durability: str = "fsync") -> None:
        self.random = random = Random(seed)
        features = Random(f"{seed}/features")
        self._has_faults = features.random() < (0.3 if durability == "fsync" else 0.5)
        self._has_clock_steps = features.random() < 0.3
        self._sample_rate = 50 if features.random() < 0.03 else 0
        self._drains = self._sample_rate > 0 or features.random() < 0.12
        self.now_ns = 1_700_000_000 * 1000 * MS
        self.options = BrokerOptions(
            keep_deferred=features.random() < 0.3,
            durability=durability,
            mem_queue_size=random.choice((0, 2, 10)),
            sync_every=random.choice((1, 5, 40)),
            max_bytes_per_file=random.choice((150, 400, 400, 2_000)),
            sync_timeout_ns=random.choice((10, 100, 2_000)) * MS,
            msg_timeout_ns=random.choice((500, 60_000)) * MS,
        )
        self._rare, self._has_rare = Random(f"{seed}/rare"), Random(f"{seed}/rare").random() < 0.5
        self.ledger = Ledger()
        has_damages = self._has_faults and durability == "fsync" and features.random() < 0.5
        self._damages = Damages(self.ledger, self._note) if has_damages else None
        if has_damages:  # the file that is read is often the one that is written
            count, size = features.choice((0, 0, 2)), features.choice((400, 2_000))
            self.options = attrs.evolve(self.options, mem_queue_size=count, max_bytes_per_file=size)
        self._tell = tell
        self.disk = Disk(note=tell and self._note, clock=lambda: self.now_ns)
        self._rules = Rules(self.options, has_faults=self._has_faults)
        self._was_stopped = False
        self._run_length = 5 if Random(f"{seed}/runs").random() < 0.1 else 1  # of PUBs that are sent together
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
        if self._drains:
            self._drain()

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
            self._machine = machine = self._start()
            for _ in range(steps):
                self._step(machine)
                if machine.is_pausing and random.random() < 0.3:  # a part of the last sync is on the disk
                    return
            if random.random() < (0.6 if self.options.keep_deferred else 0.2):
                self._stop(machine)
        except Ended:
            self._note("ended in an operation")
            self._rules.has_partial_record = True

    def _start(self) -> Machine:
        # A watched queue does not model a write that fails.
        storage_type = DiskStorage if self._has_faults else WatchedStorage
        if self._has_faults and self.random.random() < 0.3:
            self._break_disk()
            try:
                return Machine(self.disk, self.options, self.now_ns, storage_type)
            except OSError as error:
                self._note("cannot start: %s", error)
                self.disk.recover()
                self._rules.may_repeat = True
        return Machine(self.disk, self.options, self.now_ns, storage_type)

    def _stop(self, machine: Machine) -> None:
        self._note("stop")
        if self._has_faults and self.random.random() < 0.3:
            self._break_disk()
        self._rules.stopping(machine.broker, self.disk, self.now_ns)
        if self.random.random() < 0.3:
            self.disk.end_after(self.random.randint(0, 40))
        machine.stop()
        self._was_stopped = not self.disk.is_failing

    def _restart(self) -> None:
        random = self.random
        how = {name: random.random() < 0.3 for name in ("in_order", "zeros", "sectors")}
        killed = random.random() < (0.9 if self._drains else 0.2)
        self._note("%s", "killed" if killed else f"power cut {how}")
        before = self.disk
        self.disk = before.after(before.kill() if killed else before.power_cut(random, **how))
        self._rules.end_life(self.disk.files, is_clean=self._was_stopped, killed=killed)
        if self._damages is not None:
            self._damages.restart(before, self.disk)
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
        # Ids contain the time, and a start takes longer than they can be ahead of it.
        self.now_ns += 1000 * MS
        if self._has_clock_steps:
            self.now_ns += random.choice((0, -1000, -1001, -1100, -4_000, -61_000)) * MS
        if self.options.durability == "fsync" or self._was_stopped:
            disk = Disk(self.disk.files)
            machine = Machine(disk, self.options, self.now_ns, DiskStorage)
            self._rules.restarted(machine.broker)
            found = machine.contents()
            machine.drop()
            if self._damages is not None:
                self._damages.started(disk)
            if self.options.durability == "fsync" and not self._sample_rate:
                self.ledger.check(found)
            if self._was_stopped:
                self._rules.started(found)
        if self._machine is not None and isinstance(self._machine.storage, WatchedStorage):
            self._machine.storage.check(self.disk, killed=killed)
        self._was_stopped = False

    def _drain(self) -> None:
        """Finish all messages, and end once more: none may come back."""
        self._machine = machine = Machine(self.disk, self.options, self.now_ns, DiskStorage)
        broker = machine.broker
        for name in TOPICS:
            topic = broker.topics.get_or_create(name)
            topic.unpause(self.now_ns)
            for channel_name in [*topic.channels] or CHANNELS[:1]:
                topic.channel(channel_name, self.now_ns).unpause()
                self._subscribe(machine, name, channel_name, 100)
        self._note("drain")
        for number in range(DRAIN_ROUNDS):
            broker.settle(self.now_ns)
            self._listen(machine)
            for client in self._clients:
                client.session.receive_data(b"NOP\n", self.now_ns)
                while client.held:
                    message_id, body = client.held.pop()
                    self._finish(client, body)
                    client.session.receive_data(b"FIN %s\n" % message_id, self.now_ns)
            broker.settle(self.now_ns)
            if self._has_faults and number < DRAIN_ROUNDS // 10:
                self._break_disk()
                if self.random.random() < 0.3:
                    self._publish(machine)
                self._wait(machine, self.options.sync_timeout_ns)
                self._sync_all(machine)
                continue
            self.disk.recover()
            self._sync_all(machine)
            if not all_in(broker):
                break
            self._wait(machine, DRAIN_ROUNDS_NS[number > DRAIN_ROUNDS // 4])
        else:
            raise Broken(26, f"{all_in(broker)} are left")
        self._wait(machine, self.options.sync_timeout_ns)
        self._sync_all(machine)
        if is_stopped := self.random.random() < 0.5:
            self._note("stop")
            machine.stop()
        found = Machine(Disk(self.disk.files), self.options, self.now_ns, DiskStorage)
        self._rules.drained(found.contents(), self.disk.files, is_stopped=is_stopped, has_rest=self.disk.has_uncut_rest)
        found.drop()
        machine.drop()

    def _sync_all(self, machine: Machine) -> None:
        """Sync until nothing is to be done, unless the disk does not allow it."""
        count = 0
        while machine.has_work and count < SYNC_STEPS_MAX:
            for _ in islice(machine.sync(self.now_ns), SYNC_STEPS_MAX):
                count += 1

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _step(self, machine: Machine) -> None:
        random = self.random
        if self._damages is not None:
            self._damages.update(self.disk)
            if random.random() < 0.04:
                self._damage(machine, self._damages)
        if self._has_faults and random.random() < 0.08:
            self._break_disk()
            for _ in range(random.choice((0, 0, 1, 3))):
                self._publish(machine)
            if random.random() < 0.4:
                self._flow(machine)
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
        if self._has_faults and self._has_rare and self._rare.random() < RARE_SHARE:
            self._store_for_some(machine)

    def _break_disk(self) -> None:
        """Fill the disk or have it fail, or end that."""
        random = self.random
        if self.disk.is_failing and random.random() < 0.7:
            self._note("the disk recovers")
            self.disk.recover()
        elif random.random() < 0.3:
            self.disk.sync_failures = random.choice((1, 1, 3))
            self._note("the disk fails at the next %d syncs", self.disk.sync_failures)
        elif random.random() < 0.5:
            room = random.choice((0, 10, 100, 500))
            self._note("the disk has room for %d bytes", room)
            self.disk.capacity = sum(map(len, self.disk.files.values())) + room
        else:
            number, after = random.choice((errno.EIO, errno.EMFILE)), random.choice((0, 0, 1, 2, 5))
            self._note("the disk fails %d times after %d operations", times := random.choice((1, 1, 3, 100)), after)
            self.disk.fail(number, after=after, times=times)

    def _damage(self, machine: Machine, damages: Damages) -> None:
        """Damage a file, and go on with its queue at once, or later."""
        self._rules.may_repeat = True  # two messages may have the same bytes now
        damages.add(self.disk, self.random)
        for _ in range(self.random.choice((0, 4))):
            for act in (self._flow, self._consume, self._publish):
                act(machine)
                machine.broker.settle(self.now_ns)
                self._listen(machine)
                damages.update(self.disk)

    def _flow(self, machine: Machine) -> None:
        """Have the messages that wait in a topic go to its channels."""
        name = self.random.choice(TOPICS)
        self._note("unpause %s", name)
        with suppress(OSError):
            topic = machine.broker.topics.get_or_create(name)
            topic.channel(self.random.choice(CHANNELS), self.now_ns)
            topic.unpause(self.now_ns)

    def _store_for_some(self, machine: Machine) -> None:
        """Have the disk take the messages that waited in a topic for some of its channels."""
        random = self._rare
        self.disk.recover()
        topic = machine.broker.topics.get_or_create(name := random.choice(TOPICS))
        self._note("store for some channels of %s", name)
        topic.pause()
        for channel_name in CHANNELS[: random.choice((2, 3))]:
            topic.channel(channel_name, self.now_ns)
        for _ in range(random.choice((1, 2, 3))):
            self._publish(machine)
            self._go_on_with_sync(machine)
        self.disk.fail(errno.EIO, after=random.choice((0, 1, 2, 3)), times=random.choice((1, 2)))
        topic.unpause(self.now_ns)
        machine.broker.settle(self.now_ns)
        for _ in range(random.choice((0, 1, 3))):
            self._go_on_with_sync(machine)
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
                machine.check_names()
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
        new: list[Publish] = []
        for _ in range(random.choice((1, 1, 1, 3))):
            bodies = [self._body() for _ in range(random.choice((1, 1, 2, 7)))]
            topic, publishes = random.choice(TOPICS), [bodies]
            if len(bodies) > 1:
                data += encode_multi_publish(topic, bodies)
            elif random.random() < 0.3:
                delay_ms = random.choice((1, 100, 5_000, 600_000) if self.options.keep_deferred else (1, 100, 5_000))
                data += encode_deferred_publish(topic, bodies[0], delay_ms)
                self._rules.defer(machine.broker, topic, bodies[0], self.now_ns + delay_ms * MS)
            else:
                publishes += [[self._body()] for _ in range(self._run_length - 1)]
                data += b"".join(encode_publish(topic, body) for (body,) in publishes)
            places = set(found.channels) if (found := machine.broker.topics.get(topic)) else set()
            new += [self.ledger.publish(topic, bodies, set(places)) for bodies in publishes]
            self._note("publish to %s: %s", topic, publishes)
        client.waiting += new
        was_failing = self.disk.is_failing  # the last failure may be that of this publish
        (session := client.session).receive_data(data, self.now_ns)
        if was_failing:
            self._rules.refusals.put(new, self.disk.files)
        if self.options.durability == "fsync" and not (self.disk.is_failing or session.ended or session.outbox_full):
            conclude(13, machine.broker.health == "OK", f"health is {machine.broker.health} after messages were stored")

    def _body(self) -> bytes:
        self._number += 1
        return b"%d" % self._number + b"." * self.random.choice((0, 0, 10, 90, 200))

    def _consume(self, machine: Machine) -> None:
        random = self.random
        consumers = [client for client in self._clients if client.channel]
        if len(consumers) < 2 or random.random() < 0.1:
            self._subscribe(machine, random.choice(TOPICS), random.choice(CHANNELS), random.choice((1, 5, 100)))
            return
        client = random.choice(consumers)
        for _ in range(random.choice((1, 3, 100))):
            if client.held:
                message_id, body = client.held.pop(random.randrange(len(client.held)))
                client.session.receive_data(self._answer(client, message_id, body), self.now_ns)

    def _subscribe(self, machine: Machine, topic: bytes, channel: bytes, rdy_count: int) -> None:
        client = self._connect(machine)
        client.topic, client.channel = topic, channel
        data = b"SUB %s %s\nRDY %d\n" % (topic, channel, rdy_count)
        self._note("%s", data)
        if self._sample_rate:
            document = b'{"sample_rate": %d}' % self._sample_rate
            data = b"IDENTIFY\n%s%s%s" % (struct.pack(">I", len(document)), document, data)
        client.session.receive_data(data, self.now_ns)

    def _finish(self, client: Client, body: bytes) -> None:
        self.ledger.finish(client.topic, client.channel, body)
        self._rules.finished.add((client.topic, client.channel, body))

    def _answer(self, client: Client, message_id: bytes, body: bytes) -> bytes:
        random = self.random
        chance = random.random()
        if chance < 0.7:
            self._note("FIN %s of %s:%s", body, client.topic, client.channel)
            self._finish(client, body)
            return b"FIN %s\n" % message_id
        if chance < 0.9:
            delay_ms = random.choice((0, 0, 10, 2_000))
            subscription = client.session.subscription
            if delay_ms and subscription is not None and message_id in subscription.in_flight:
                self._rules.requeue(client.topic, client.channel, body, self.now_ns + delay_ms * MS)
            return b"REQ %s %d\n" % (message_id, delay_ms)
        return b"TOUCH %s\n" % message_id if chance < 0.95 else b"NOP\n"

    def _listen(self, machine: Machine) -> None:
        for client in list(self._clients):
            for kind, data in client.frames(self.now_ns):
                if kind == 2:
                    client.held.append((data[10:26], data[26:]))
                    self._rules.delivered(client.topic, client.channel, data, self.now_ns)
                elif data == b"OK" and client.waiting:
                    publish = client.waiting.pop(0)
                    self._note("OK for %s", publish.bodies)
                    self.ledger.acknowledge(publish)
                    self._rules.acknowledged.update(publish.bodies)
                elif self._has_faults and data.startswith((b"E_PUB", b"E_MPUB", b"E_DPUB")):
                    self._note("%s", data)
                    publish = client.waiting.pop(0)
                    self._rules.refusals.refuse(publish, client.waiting, self.disk.files)
                else:
                    is_failure = data.startswith((b"E_FIN", b"E_REQ", b"E_TOUCH"))
                    is_failure |= self._has_faults and data.startswith(b"E_SUB_FAILED")
                    assert kind == 0 or is_failure, data
            if client.session.ended:
                self._leave(machine, client)

    # ---- from outside ------------------------------------------------------------------------------------------

    def _administer(self, machine: Machine) -> None:
        with suppress(*([OSError] if self._has_faults else [])):
            self._administer_now(machine)

    def _administer_now(self, machine: Machine) -> None:
        random, broker, ledger = self.random, machine.broker, self.ledger
        name = random.choice(TOPICS)
        topic = broker.topics.get(name)
        if topic is None:
            broker.topics.get_or_create(name)
            return
        channel_name = random.choice(CHANNELS)
        channel = topic.channels.get(channel_name)
        what = random.choice(("delete", "empty", "pause", "unpause", "unpause", "create"))
        is_topic = random.random() < (0.6 if self._has_faults else 0.3)
        self._note("%s %s %s", what, name, b"" if is_topic else channel_name)
        if is_topic:
            if what == "delete":
                ledger.delete_topic(name)
                if self.disk.is_failing:
                    ledger.deleting.clear()  # files that cannot be removed are there again with the next of that name
                broker.delete_topic(name)
                self._rules.removed(self.disk.files, name, check_deleted)
            elif what == "empty":
                ledger.forget(name, *CHANNELS)  # messages of a channel may still be in the topic
                topic.empty()
                self._rules.removed(self.disk.files, name, check_emptied)
            elif what == "pause":
                topic.pause()
            else:
                topic.unpause(self.now_ns)
        elif channel is None:
            topic.channel(channel_name, self.now_ns)
        elif what == "delete":
            ledger.delete_channel(name, channel_name)
            broker.delete_channel(name, channel_name)
            self._rules.removed(self.disk.files, name + b":" + channel_name, check_deleted)
        elif what == "empty":
            ledger.forget(name, channel_name)
            channel.empty()
            self._rules.removed(self.disk.files, name + b":" + channel_name, check_emptied)
        elif what == "pause":
            channel.pause()
        else:
            channel.unpause()
