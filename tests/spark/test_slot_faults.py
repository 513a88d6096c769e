"""Attempts of a partition with a slot log, and everything that can go wrong: each message is in one batch.

An attempt is killed at each point between two actions, its connection is lost at each command, its messages time out
in nsqd, its store is slow, and a second attempt runs beside it.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio
import attrs
import pytest
from anyio.to_thread import run_sync
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqkit.clock import ManualClock
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.spark.batch_plan import PartitionShare, PlannedConnection
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.drainer import PartitionStats, drain_to_slots_async
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.slots.records import DataSlot, MessageKey
from nsqkit.spark.slots.slot_log import ReplaySlot
from nsqkit.spark.slots.store import SlotStore
from nsqkit.spark.slots.wal import PartitionWal, Wal
from nsqkit.testing import NsqdServer
from tests.spark.slots.memory_store import MemoryStore
from tests.spark.time_limits import FIRST_DELIVERY_MAX

pytestmark = pytest.mark.anyio

COUNT = 7
BODIES = [b"%d" % number for number in range(COUNT)]
MSG_TIMEOUT = 30
OPERATIONS = 14
"""Calls of the store in the first attempt of ``fill``, without a fault."""


class Killed(Exception):
    """The process of an attempt has ended."""


@attrs.define(eq=False)
class FaultyStore(MemoryStore):
    """A store that calls a function before and after each of its operations, with its number."""

    before: Callable[[int, str], object] = attrs.field(default=lambda number, key: None)
    after: Callable[[int, str], object] = attrs.field(default=lambda number, key: None)
    count: int = 0

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        number = self.count
        self.count += 1
        self.before(number, key)
        stored = super().put_if_absent(key, *parts)
        self.after(number, key)
        return stored

    def get(self, key: str) -> bytes | None:
        number = self.count
        self.count += 1
        self.before(number, key)
        data = super().get(key)
        self.after(number, key)
        return data


class World:
    """A topic with messages, a WAL, and the batches that a stream makes of them, one partition each."""

    def __init__(self, nsqd: NsqdServer, store: SlotStore, *, max_in_flight: int = 4, **options) -> None:
        self.nsqd = nsqd
        self.wal = Wal(store, "w")
        self.spec = ConsumerSpec(
            topics="t",
            channel="c",
            nsqd_tcp_addresses=[nsqd.tcp_address],
            msg_timeout=MSG_TIMEOUT,
            **{"linger": 0.01, "empty_for": 0.05, **options},
        )
        connection = PlannedConnection(nsqd.tcp_address, "t", max_in_flight)
        self.share = PartitionShare(index=0, connections=(connection,), records_max=None, bytes_max=None)
        self.batches: dict[int, tuple[ReplaySlot, ...]] = {}

    async def attempt(self, batch: int, *, count: int | None = None, **options) -> PartitionStats:
        """Run an attempt; with ``count``, it takes that many messages, however late they arrive."""
        spec, share = self.spec, self.share
        if count is not None:
            spec, share = attrs.evolve(spec, empty_for=10.0), attrs.evolve(share, records_max=count)
        slots, stats = await drain_to_slots_async(spec, share, self.wal.partition(batch, 0), **options)
        assert self.batches.setdefault(batch, slots) == slots
        return stats

    async def finish(self, first_batch: int) -> None:
        """Make batches until the channel is empty; let messages of dead owners time out before each."""
        for batch in range(first_batch, first_batch + 10):
            await self.nsqd.clock.advance(MSG_TIMEOUT)
            await self.attempt(batch)
            channel = self.nsqd.topic("t").channel("c")
            if not (channel.depth or channel.in_flight or channel.deferred):
                return
        raise AssertionError("the channel is not empty after ten batches")

    def rows(self) -> Counter[bytes]:
        """Return how many rows each message has in all batches."""
        wal = self.wal
        return Counter(
            key.id for batch, slots in self.batches.items() for key in rows_of(wal.partition(batch, 0), slots)
        )

    def assert_each_once(self) -> None:
        rows = self.rows()
        assert (len(rows), rows.total()) == (COUNT, COUNT), "lost or duplicated rows"


def rows_of(partition_wal: PartitionWal, slots: Iterable[ReplaySlot]) -> list:
    return [key for slot in slots for key in partition_wal.read_slot(slot.number).keys if key not in slot.excluded]


async def test_without_faults_a_batch_has_all_messages_and_a_replay_the_same_rows():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        stats = await world.attempt(0, count=COUNT)
        assert store.count >= OPERATIONS
        assert (stats.received_count, stats.finished_count, stats.byte_count) == (COUNT, COUNT, COUNT)
        assert (await world.attempt(0)).received_count == 0
        assert len(nsqd.journal.commands("SUB")) == 1
        world.assert_each_once()
        await nsqd.wait_idle("t")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("point", range(OPERATIONS))
async def test_an_attempt_that_is_killed_between_two_actions(point: int, moment: str):
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)

        def kill(number: int, key: str) -> None:
            if number == point:
                nsqd.faults.drop(command="REQ")  # a killed process requeues nothing
                raise Killed

        setattr(store, moment, kill)
        with pytest.raises(Killed):
            await world.attempt(0, count=COUNT)
        nsqd.faults.clear()
        setattr(store, moment, lambda number, key: None)
        await world.attempt(0)
        await world.finish(1)
        world.assert_each_once()


@pytest.mark.parametrize("after", range(COUNT + 4))
async def test_a_connection_that_is_lost_at_a_fin(after: int):
    """The attempt goes on with a new connection. The FINs of a chunk are followed by one for the barrier."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        world = World(nsqd, MemoryStore())
        nsqd.faults.reset(command="FIN", after=after, times=1)
        await world.attempt(0)
        await world.finish(1)
        world.assert_each_once()


@pytest.mark.parametrize("command", ["SUB", "RDY", "CLS", "MESSAGE", "OK", "ERROR"])
async def test_a_connection_that_is_lost_at_another_command_or_frame(command: str):
    """The first error is the answer to the first barrier: nsqd has processed the FINs, and this end cannot know it."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        world = World(nsqd, MemoryStore())
        nsqd.faults.reset(command=command, times=1)
        await world.attempt(0)
        await world.finish(1)
        world.assert_each_once()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("suffix", ["0.slot", "1.slot"])
async def test_an_nsqd_that_restarts_while_the_store_works(suffix: str, moment: str):
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        done: list[str] = []

        def restart(number: int, key: str) -> None:
            if key.endswith(suffix) and not done and (moment == "before" or key in store.values):
                done.append(key)
                nsqd.restore(nsqd.snapshot())

        setattr(store, moment, restart)
        await world.attempt(0)
        await world.finish(1)
        assert done
        world.assert_each_once()


@pytest.mark.parametrize("suffix", ["0.slot", "1.slot"])
async def test_messages_that_time_out_in_nsqd_while_the_store_works(suffix: str):
    """This end's clock stays behind, so it sends FINs that nsqd refuses: their rows do not count."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        done: list[str] = []

        def wait(number: int, key: str) -> None:
            if key.endswith(suffix) and key in store.values and not done:
                done.append(key)
                nsqd.clock.advance(MSG_TIMEOUT)

        store.after = wait
        stats = await world.attempt(0, count=COUNT)
        await world.finish(1)
        world.assert_each_once()
        if suffix == "0.slot":
            assert stats.finish_failed_count == sum(len(slot.excluded) for slot in world.batches[0]) > 0


async def test_a_slow_store_keeps_its_messages():
    """Messages are touched and heartbeats answered (pitfall 14) while a slot is written for three timeouts."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        slow: list[str] = []

        def wait(number: int, key: str) -> None:
            if key.endswith("0.slot") and key in store.values and not slow:
                slow.append(key)
                nsqd.clock.advance(3 * MSG_TIMEOUT)

        store.after = wait
        stats = await world.attempt(0, count=COUNT, clock=nsqd.clock)
        channel = nsqd.topic("t").channel("c")
        assert (channel.timeout_count, stats.finish_failed_count) == (0, 0)
        assert stats.touched_count > 0
        assert len(nsqd.journal.commands("SUB")) == 1
        world.assert_each_once()


@pytest.mark.parametrize("operation", range(OPERATIONS))
async def test_a_second_attempt_at_any_time(operation: int):
    """Speculation, or an owner that was stopped: the second attempt seals the log, and both return the same rows."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)

        def run_beside(number: int, key: str) -> None:
            if number == operation:
                anyio.run(world.attempt, 0)

        store.before = run_beside
        await world.attempt(0)
        await world.finish(1)
        world.assert_each_once()


async def test_two_attempts_at_a_time():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        world = World(nsqd, MemoryStore())
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(world.attempt, 0)
        await world.finish(1)
        world.assert_each_once()


async def kill_at_first_slot(world: World, nsqd: NsqdServer, store: FaultyStore) -> None:
    """Run an attempt that dies after it has stored its first slot; its messages are in flight until their timeout."""

    def kill(number: int, key: str) -> None:
        if key.endswith("0.slot") and key in store.values:
            nsqd.faults.drop(command="REQ")
            raise Killed

    store.after = kill
    with pytest.raises(Killed):
        await world.attempt(0, count=COUNT)
    nsqd.faults.clear()
    store.after = lambda number, key: None


async def test_a_message_of_an_open_slot_is_not_taken_by_a_later_wave_of_the_batch():
    """Pitfall 24: the copy arrives while the outcome of its slot is open, and again when it is known."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        await kill_at_first_slot(world, nsqd, store)
        await nsqd.clock.advance(MSG_TIMEOUT)
        other = world.wal.partition(0, 1)
        slots, stats = await drain_to_slots_async(world.spec, world.share, other)
        included = rows_of(other, slots)
        assert stats.requeued_count >= 2  # the slot's messages; nsqd delivers them after a second
        await world.attempt(0)
        await world.finish(1)
        rows = world.rows() + Counter(key.id for key in included)
        assert (len(rows), rows.total()) == (COUNT, COUNT)


async def test_a_message_whose_row_is_in_a_slot_is_no_dead_letter():
    """Its last delivery was stored; the next one, which exceeds the limit, comes because the FIN was never sent."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store, max_attempts=1, dead_letter_topic="dead")
        await kill_at_first_slot(world, nsqd, store)
        await world.attempt(0)
        await world.finish(1)
        letters = Counter(GivenUp.decode(letter.body).id.encode() for letter in nsqd.messages("dead"))
        assert letters  # those that the killed attempt had not stored
        each = world.rows() + letters
        assert (len(each), each.total()) == (COUNT, COUNT)


async def test_a_second_attempt_waits_while_the_first_one_adds_slots():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        other = FaultyStore(store.values)
        first, second = (World(nsqd, each, empty_for=FIRST_DELIVERY_MAX) for each in (store, other))
        has_stored, has_looked = threading.Event(), threading.Semaphore(0)

        def wait(number: int, key: str) -> None:
            if key.endswith("1.slot") and not has_stored.is_set():
                has_stored.set()
                for _ in range(2):  # the second attempt reads the log, and then seals it, or reads it again
                    assert has_looked.acquire(timeout=10)

        store.before = wait
        other.after = lambda number, key: has_looked.release() if key.endswith("1.slot") else None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.attempt, 0)
            await run_sync(has_stored.wait, 10)
            stats = await second.attempt(0)
        assert (second.batches, stats.received_count) == (first.batches, 0)
        first.assert_each_once()


async def test_an_attempt_that_loses_a_slot_holds_no_messages_while_it_waits():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        stores = [store, FaultyStore(store.values)]
        worlds = [World(nsqd, store, empty_for=FIRST_DELIVERY_MAX) for store in stores]
        are_receiving = threading.Barrier(2)

        def wait(number: int, key: str) -> None:
            if number == 1:  # the first put of each attempt
                are_receiving.wait(10)

        for store in stores:
            store.before = wait
        async with anyio.create_task_group() as tasks:
            for world in worlds:
                tasks.start_soon(world.attempt, 0)
        assert worlds[0].batches == worlds[1].batches
        worlds[0].assert_each_once()


@pytest.mark.parametrize("is_stream", [False, True], ids=["adopted", "stream"])
async def test_a_log_that_no_live_attempt_fills_is_sealed_at_once(is_stream: bool):
    with NsqdServer() as nsqd:
        world = World(nsqd, MemoryStore(), stop_after_linger=is_stream)
        if not is_stream:
            world.share = attrs.evolve(world.share, connections=())
        world.wal.partition(0, 0).put_slot(0, DataSlot((MessageKey(nsqd.tcp_address, "t", b"0" * 16),), b""))
        with anyio.fail_after(5):
            await world.attempt(0, clock=ManualClock())
        assert [slot.number for slot in world.batches[0]] == [0]


async def test_one_id_from_two_nsqds_is_two_messages():
    """Pitfall 11: an id is unique in one topic of one nsqd. Both were delivered before, so both are looked up."""
    with NsqdServer() as one, NsqdServer() as two:
        message_id = one.inject("t", b"1", channel="c", attempts=1)
        assert two.inject("t", b"2", channel="c", attempts=1, id=message_id) == message_id
        world = World(one, MemoryStore())
        await world.attempt(0, count=1)
        other = World(two, world.wal.store)
        other.wal = world.wal
        await other.attempt(1, count=1)
        assert [len(rows_of(world.wal.partition(n, 0), w.batches[n])) for n, w in enumerate([world, other])] == [1, 1]


async def test_a_node_that_is_gone_is_an_empty_partition_of_a_stream():
    with NsqdServer() as nsqd:
        world = World(nsqd, MemoryStore(), fail_on_node_loss=False)
        nsqd.stop()
        stats = await world.attempt(0)
        assert (world.batches[0], stats.unreachable_count, stats.received_count) == ((), 1, 0)
        nsqd.start()
        nsqd.publish("t", *BODIES)
        assert (await world.attempt(0)).received_count == 0
        assert (await world.attempt(1, count=COUNT)).unreachable_count == 0
        world.assert_each_once()


async def test_a_stream_ends_a_batch_after_the_messages_that_waited():
    """Pitfall 18: the deadline of 30 seconds is not reached though one message follows the other."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"0")
        store = FaultyStore()
        world = World(nsqd, store, max_in_flight=100, stop_after_linger=True, linger=0.05, deadline=30)
        store.before = lambda number, key: nsqd.publish("t", b"next")
        stats = await world.attempt(0)
        assert stats.stop_reason is StopReason.LINGER
        assert stats.chunk_count == 1


async def test_rdy_does_not_limit_a_batch():
    """Pitfall 8: FIN for each chunk lets nsqd deliver more than RDY in a batch."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *(b"x" for _ in range(50)))
        world = World(nsqd, MemoryStore())
        assert (await world.attempt(0, count=50)).finished_count == 50


class Fault(enum.Enum):
    """What happens at an operation of the store, or at a FIN, of one attempt."""

    KILL_BEFORE = "the attempt is killed before the operation"
    KILL_AFTER = "the attempt is killed after the operation"
    RESTART = "nsqd restarts"
    SECOND = "a second attempt runs from its start to its end"
    LOST_FIN = "the connection is lost at a FIN"
    LOST_ANSWER = "the connection is lost at the answer to a FIN"


@settings(max_examples=25)
@given(faults=st.lists(st.tuples(st.sampled_from(Fault), st.integers(0, OPERATIONS)), min_size=1, max_size=4))
def test_any_sequence_of_faults_leaves_one_row_of_each_message(faults: list[tuple[Fault, int]]):
    anyio.run(run_faults, faults)


async def run_faults(faults: list[tuple[Fault, int]]) -> None:
    """Run attempts with one fault each, then batches without faults."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES)
        store = FaultyStore()
        world = World(nsqd, store)
        for fault, place in faults:
            await run_fault(world, store, fault, place)
            await nsqd.clock.advance(MSG_TIMEOUT)
        await world.attempt(0)
        await world.finish(1)
        world.assert_each_once()


async def run_fault(world: World, store: FaultyStore, fault: Fault, place: int) -> None:
    nsqd, first = world.nsqd, store.count

    def act(number: int, key: str) -> None:
        if number != first + place:
            return
        if fault is Fault.RESTART:
            nsqd.restore(nsqd.snapshot())
        elif fault is Fault.SECOND:
            anyio.run(world.attempt, 0)
        else:
            nsqd.faults.drop(command="REQ")  # a killed process requeues nothing
            raise Killed

    if fault is Fault.LOST_FIN:
        nsqd.faults.reset(command="FIN", after=place, times=1)
    elif fault is Fault.LOST_ANSWER:
        nsqd.faults.reset(command="ERROR", after=place, times=1)
    elif fault is Fault.KILL_AFTER:
        store.after = act
    else:
        store.before = act
    with suppress(Killed):
        await world.attempt(0)
    nsqd.faults.clear()
    store.before = store.after = lambda number, key: None
