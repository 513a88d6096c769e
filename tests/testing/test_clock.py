from __future__ import annotations

import socket
import threading
import time
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsqkit.testing.clock
from nsqkit.clock import NS_PER_S, move_on_after
from nsqkit.consumer import Consumer
from nsqkit.errors import OptionError
from nsqkit.producer import Producer
from nsqkit.testing.clock import LOOKS_LIMIT, QUIET_LOOKS, TURN_LIMIT, WINDOW_NS, ControlledClock, Mode
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_identify, encode_publish

MODES: tuple[Mode, ...] = ("running", "manual", "auto", "real")


class TestTime:
    def test_unknown_mode_is_refused(self) -> None:
        with pytest.raises(OptionError, match="mode is 'fast'; allowed are"):
            ControlledClock("fast")  # type: ignore[arg-type]

    @pytest.mark.parametrize("mode", MODES)
    def test_clock_starts_at_start_ns(self, mode: Mode) -> None:
        clock = ControlledClock(mode, start_ns=7 * NS_PER_S)
        assert clock.mode == mode
        assert 7 <= clock.time < 8

    @pytest.mark.parametrize("mode", ["running", "real"])
    def test_running_clock_shows_the_present_time(self, mode: Mode) -> None:
        clock = ControlledClock(mode)
        assert abs(clock.time - time.time()) < 1
        now_ns = clock.now_ns()
        while clock.now_ns() == now_ns:
            pass
        assert clock.now_ns() > now_ns

    @pytest.mark.parametrize("mode", ["manual", "auto"])
    def test_standing_clock_starts_at_a_fixed_time(self, mode: Mode) -> None:
        assert time.gmtime(ControlledClock(mode).time)[:6] == (2024, 1, 1, 0, 0, 0)


class TestAdvance:
    def test_manual_clock_moves_by_advance_alone(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        clock.advance(1.5)
        clock.advance(0)
        clock.advance(1e-9)
        assert clock.now_ns() == 1_500_000_001

    def test_running_clock_adds_the_seconds(self) -> None:
        clock = ControlledClock()
        begun = clock.time
        clock.advance(3600)
        assert 3600 <= clock.time - begun < 3660

    @pytest.mark.parametrize("seconds", [-0.1, 1e10, float("nan")])
    def test_wrong_seconds_are_refused(self, seconds: float) -> None:
        clock = ControlledClock("manual", start_ns=5)
        with pytest.raises(OptionError, match=f"seconds is {seconds}; allowed is 0 to 1e.09 seconds"):
            clock.advance(seconds)
        assert clock.now_ns() == 5

    def test_real_clock_cannot_be_moved(self) -> None:
        clock = ControlledClock("real")
        with pytest.raises(RuntimeError, match='mode "real"'):
            clock.advance(1)
        with pytest.raises(RuntimeError, match='mode "real"'):
            clock.advance_to_next()

    def test_without_a_deadline_there_is_no_next(self) -> None:
        with pytest.raises(RuntimeError, match="nothing waits for the clock"):
            ControlledClock().advance_to_next()

    @pytest.mark.anyio
    async def test_waits_end_at_their_deadlines_in_order(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        log: list[tuple[int, float]] = []

        async def wait(second: int) -> None:
            await clock.wait_until(second * NS_PER_S)
            log.append((second, clock.time))

        async with anyio.create_task_group() as tasks:
            for second in (30, 1, 3600, 2, 0):
                tasks.start_soon(wait, second)
            await anyio.wait_all_tasks_blocked()
            await clock.advance_to_next()
            assert log == [(0, 0), (1, 1)]
            await clock.advance(3600)
        assert log == [(0, 0), (1, 1), (2, 2), (30, 30), (3600, 3600)]

    @pytest.mark.anyio
    async def test_periodic_task_runs_in_each_period(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        seconds: list[float] = []

        async def repeat() -> None:
            while True:
                await clock.wait_until(clock.now_ns() + 60 * NS_PER_S)
                seconds.append(clock.time)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repeat)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(3600)
            tasks.cancel_scope.cancel()
        assert seconds == [60 * count for count in range(1, 61)]

    @pytest.mark.anyio
    async def test_running_clock_stands_still_while_it_is_moved(self) -> None:
        clock = ControlledClock()
        times_ns: list[int] = []

        async def repeat() -> None:
            while True:
                await clock.wait_until(clock.now_ns() + NS_PER_S)
                times_ns.append(clock.now_ns())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repeat)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(10)
            tasks.cancel_scope.cancel()
        assert [later - earlier for earlier, later in pairwise(times_ns[:9])] == [NS_PER_S] * 8

    @pytest.mark.anyio
    async def test_running_clock_runs_again_when_it_was_moved(self) -> None:
        clock = ControlledClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.wait_until, clock.now_ns() + 3_600_050_000_000)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(3600)
        assert not clock.stands

    def test_running_clock_runs_again_after_an_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ControlledClock()
        turns = iter([KeyboardInterrupt])

        def interrupt_once() -> None:
            if error := next(turns, None):
                raise error

        monkeypatch.setattr(clock, "_take_turns", interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            clock.advance(1)
        assert not clock.stands

    @pytest.mark.anyio
    async def test_many_deadlines_are_handled_together(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        seconds: list[float] = []

        async def repeat() -> None:
            while True:
                await clock.wait_until(clock.now_ns() + 1_000_000)
                seconds.append(clock.time)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repeat)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(10)
            tasks.cancel_scope.cancel()
        assert clock.now_ns() == 10 * NS_PER_S
        assert 400 < len(seconds) < 700

    @pytest.mark.anyio
    async def test_stall_does_not_end_the_wait_for_the_turns_of_a_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ControlledClock("manual")
        loop = clock.add_loop()
        stalled = SimpleNamespace(monotonic=partial(next, count(step=2 * TURN_LIMIT)), sleep=lambda seconds: None)
        monkeypatch.setattr(nsqkit.testing.clock, "time", stalled)
        await clock.advance(0)
        assert loop.late_turns is None

    def test_slow_looks_are_repeated_until_there_is_no_activity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a busy machine a look may take longer than the time without activity."""
        clock = ControlledClock("manual")
        slow = SimpleNamespace(monotonic=partial(next, count(step=1.0)), sleep=lambda seconds: None)
        monkeypatch.setattr(nsqkit.testing.clock, "time", slow)
        activity = [0, 0, 1, 1, 1, 2]  # that of the looks, then the last one again
        looks: list[int] = []

        def look() -> int:
            looks.append(activity[min(len(looks), len(activity) - 1)])
            return looks[-1]

        monkeypatch.setattr(clock, "_activity", look)
        clock._settle(None)
        assert looks == activity + [2] * QUIET_LOOKS

    @pytest.mark.anyio
    async def test_block_is_cancelled_at_its_limit(self) -> None:
        clock = ControlledClock("manual")

        async def advance() -> None:
            await clock.advance(5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(advance)
            with move_on_after(clock, 5) as scope:
                await anyio.sleep_forever()
        assert scope.cancelled_caught


class TestScopes:
    @pytest.mark.anyio
    async def test_later_deadline_replaces_the_first(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        with anyio.CancelScope() as scope:
            clock.cancel_at(scope, 10 * NS_PER_S)
            clock.cancel_at(scope, 20 * NS_PER_S)
            await clock.advance(15)
            assert not scope.cancel_called
            clock.cancel_at(scope, None)
            await clock.advance(15)
        assert not scope.cancel_called

    @pytest.mark.anyio
    @pytest.mark.parametrize("mode", MODES)
    async def test_past_deadline_cancels_at_once(self, mode: Mode) -> None:
        clock = ControlledClock(mode)
        await clock.wait_until(clock.now_ns() - 1)
        with move_on_after(clock, 0) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught

    @pytest.mark.anyio
    @pytest.mark.parametrize("mode", ["running", "real", "auto"])
    async def test_deadline_comes_without_advance(self, mode: Mode) -> None:
        clock = ControlledClock(mode)
        deadline_ns = clock.now_ns() + 5_000_000
        await clock.wait_until(deadline_ns)
        await clock.wait_until(deadline_ns)  # the first one may end a rounding error before it
        assert clock.now_ns() >= deadline_ns

    @pytest.mark.anyio
    async def test_advance_of_a_running_clock_ends_waits(self) -> None:
        clock = ControlledClock()
        ended: list[float] = []
        begun = clock.time

        async def wait() -> None:
            await clock.wait_until(clock.now_ns() + 3600 * NS_PER_S)
            ended.append(clock.time)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(3599)
            assert ended == []
            await clock.advance(1)
        assert 3600 <= ended[0] - begun < 3660

    @pytest.mark.anyio
    async def test_ended_waits_are_forgotten(self) -> None:
        clock = ControlledClock("manual")
        with anyio.move_on_after(0.001):
            await clock.wait_until(clock.now_ns() + 1)
        with move_on_after(clock, 5):
            await anyio.lowlevel.checkpoint()
        with pytest.raises(RuntimeError, match="nothing waits"):
            await clock.advance_to_next()


class TestThreads:
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_ended_loops_are_forgotten(self, backend: str) -> None:
        clock = ControlledClock("manual")

        async def leave_a_scope() -> anyio.CancelScope:
            scope = anyio.CancelScope()
            clock.cancel_at(scope, clock.now_ns() + 1)
            return scope

        scopes = [anyio.run(leave_a_scope, backend=backend) for _ in range(3)]
        assert len(scopes) == 3
        assert len(clock._loops) == 1
        with pytest.raises(RuntimeError, match="nothing waits"):
            clock.advance_to_next()
        assert not clock._loops

    def test_no_deadline_of_any_thread_is_missed(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        started = threading.Barrier(5)
        times: dict[str, list[float]] = {}

        async def count_seconds(name: str) -> None:
            clock.add_loop()
            await anyio.to_thread.run_sync(started.wait)
            while clock.time < 50:
                await clock.wait_until(clock.now_ns() + NS_PER_S)
                times.setdefault(name, []).append(clock.time)

        def run(name: str, backend: str, use_uvloop: bool) -> None:
            options = {"use_uvloop": True} if use_uvloop else {}
            anyio.run(count_seconds, name, backend=backend, backend_options=options)

        threads = [
            threading.Thread(target=run, args=(f"{backend} {number}", backend, use_uvloop))
            for number, (backend, use_uvloop) in enumerate(
                [("asyncio", False), ("asyncio", True), ("trio", False), ("trio", False)]
            )
        ]
        for thread in threads:
            thread.start()
        started.wait()
        while any(thread.is_alive() for thread in threads):
            clock.advance(1)
        assert len(times) == 4
        for seconds in times.values():
            assert [later - earlier for earlier, later in pairwise(seconds)] == [1.0] * (len(seconds) - 1)

    def test_blocked_loop_delays_one_step_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nsqkit.testing.clock, "TURN_LIMIT", 0.3)
        clock = ControlledClock("manual", start_ns=0)
        is_blocked, may_continue = threading.Event(), threading.Event()
        seconds: list[float] = []

        async def block() -> None:
            clock.add_loop()
            is_blocked.set()
            may_continue.wait()
            for _ in range(2):
                await clock.wait_until(clock.now_ns() + NS_PER_S)
                seconds.append(clock.time)

        thread = threading.Thread(target=anyio.run, args=(block,))
        thread.start()
        is_blocked.wait()
        begun = time.monotonic()
        for _ in range(100):
            clock.advance(0)
        assert time.monotonic() - begun < 20
        may_continue.set()
        while clock._next_deadline(0) is None:
            pass
        clock.advance(2)
        thread.join()
        assert seconds == [1, 2]


# ---- any sequence of waits and moves, in one event loop --------------------------------------------------------------

MILLISECONDS = st.integers(0, 10_000)
MOVES = st.one_of(
    st.tuples(st.just("wait"), MILLISECONDS),
    st.tuples(st.just("limit"), MILLISECONDS),
    st.tuples(st.just("advance"), MILLISECONDS),
    st.just(("next", 0)),
)


class Waits:
    """Tasks that wait for a clock, and the list of the deadlines that have not come."""

    def __init__(self, clock: ControlledClock, tasks: anyio.abc.TaskGroup) -> None:
        self.clock = clock
        self.waiting: list[int] = []
        self._tasks = tasks

    async def make(self, action: str, ms: int) -> None:
        now_ns, delay_ns = self.clock.now_ns(), ms * 1_000_000
        later = [due_ns for due_ns in self.waiting if due_ns > now_ns]
        match action:
            case "wait" | "limit":
                self.waiting.append(now_ns + delay_ns)
                self._tasks.start_soon(self._wait if action == "wait" else self._limit, now_ns + delay_ns)
                await anyio.lowlevel.checkpoint()
            case "advance":
                await self.clock.advance(ms / 1000)
                assert self.clock.now_ns() == now_ns + delay_ns
            case "next" if later:
                await self.clock.advance_to_next()
                assert self.clock.now_ns() == min(later)
            case "next":
                with pytest.raises(RuntimeError, match="nothing waits"):
                    await self.clock.advance_to_next()
        if action in {"advance", "next"}:
            assert all(due_ns > self.clock.now_ns() for due_ns in self.waiting)

    async def _wait(self, due_ns: int) -> None:
        await self.clock.wait_until(due_ns)
        self._end(due_ns)

    async def _limit(self, due_ns: int) -> None:
        with anyio.CancelScope() as scope:
            self.clock.cancel_at(scope, 1 << 62)
            self.clock.cancel_at(scope, due_ns)
            await anyio.sleep_forever()
        self._end(due_ns)

    def _end(self, due_ns: int) -> None:
        self.waiting.remove(due_ns)
        others = [other_ns for other_ns in self.waiting if abs(other_ns - due_ns) <= WINDOW_NS]
        late_ns = self.clock.now_ns() - due_ns
        assert 0 <= late_ns <= WINDOW_NS * (1 + len(others))


@settings(max_examples=30)
@given(moves=st.lists(MOVES, max_size=12), backend=st.sampled_from(["asyncio", "trio"]))
def test_every_wait_ends_at_its_deadline(moves: list[tuple[str, int]], backend: str) -> None:
    async def make_all() -> None:
        clock = ControlledClock("manual", start_ns=0)
        async with anyio.create_task_group() as tasks:
            waits = Waits(clock, tasks)
            for action, ms in moves:
                await waits.make(action, ms)
            await clock.advance(11)
            assert waits.waiting == []

    anyio.run(make_all, backend=backend)


# ---- connections ----------------------------------------------------------------------------------------------------


class FakeLink:
    """A connection whose client gets a heartbeat at ``heartbeat_ns``, and does not answer it."""

    def __init__(self, clock: ControlledClock) -> None:
        self.traffic_count = 0
        self.heartbeat_count = 0
        self.heartbeat_ns = 0
        self.look_count = 0
        self._clock = clock
        self._has_answered = 0

    @property
    def owes_answer(self) -> bool:
        self.look_count += 1
        if self.heartbeat_ns and self._clock.now_ns() >= self.heartbeat_ns:
            self.heartbeat_ns = 0
            self.heartbeat_count += 1
        return self.heartbeat_count > self._has_answered

    def answer(self) -> None:
        self._has_answered = self.heartbeat_count


def test_client_that_did_not_answer_once_is_waited_for_when_it_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqkit.testing.clock, "ANSWER_LIMIT", 0.1)
    clock = ControlledClock("manual")
    link = FakeLink(clock)
    clock.attach(link)
    was_waited_for = []
    for _ in range(3):
        link.heartbeat_ns = clock.now_ns() + NS_PER_S
        before = link.look_count
        clock.advance(1)
        was_waited_for.append(link.look_count - before >= LOOKS_LIMIT)
        if len(was_waited_for) == 2:
            link.answer()
    assert was_waited_for == [True, False, True]
    clock.detach(link)


# ---- with a broker --------------------------------------------------------------------------------------------------


def test_sixty_second_timeout_of_a_message_takes_milliseconds() -> None:
    # A heartbeat comes only after the timeout, since the clock would wait for its answer.
    with NsqdServer(clock="manual", max_heartbeat_interval=120) as nsqd:
        with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
            identify = encode_identify(b'{"heartbeat_interval":120000}')
            client.sendall(MAGIC_V2 + identify + encode_publish(b"t", b"x") + b"SUB t c\nRDY 1\n")
            received = b""
            while b"x" not in received[-1:]:
                received += client.recv(1000)
            begun = time.monotonic()
            nsqd.clock.advance(59)
            assert nsqd.topic("t").channel("c").timeout_count == 0
            nsqd.clock.advance(1)
            assert nsqd.topic("t").channel("c").timeout_count == 1
            assert time.monotonic() - begun < 30


@pytest.mark.anyio
async def test_clients_of_the_test_stay_connected_for_an_hour() -> None:
    with NsqdServer(clock="manual") as nsqd:
        async with (
            Producer(nsqd.tcp_address, clock=nsqd.clock) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock) as consumer,
        ):
            await producer.publish("t", b"x")
            message = await anext(aiter(consumer))
            message.finish()
            await nsqd.clock.advance(3600)
            await producer.publish("t", b"y")
            message = await anext(aiter(consumer))
            assert (message.body, message.attempts) == (b"y", 1)
            message.finish()
            assert len(nsqd.connections) == 2


def test_server_with_a_standing_clock_stops_while_a_client_does_not_read() -> None:
    threads = set(threading.enumerate())
    with NsqdServer(clock="manual", max_rdy_count=100) as nsqd:
        client = socket.create_connection(split_address(nsqd.tcp_address), timeout=60)
        client.sendall(MAGIC_V2 + b"".join(encode_publish(b"t", b"x" * 500_000) for _ in range(40)))
        client.sendall(b"SUB t c\nRDY 100\n")
        while nsqd.topic("t").channel("c").in_flight == 0:
            pass
    client.close()
    assert not [thread for thread in {*threading.enumerate()} - threads if thread.name.startswith("nsqkit")]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_auto_clock_moves_while_everything_is_idle(backend: str) -> None:
    begun = time.monotonic()
    with NsqdServer(clock="auto") as nsqd:

        async def receive() -> None:
            async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock) as consumer:
                start = nsqd.clock.time
                nsqd.publish("t", b"x", defer=600)
                message = await anext(aiter(consumer))
                assert 600 <= nsqd.clock.time - start < 700
                message.finish()

        anyio.run(receive, backend=backend)
    assert time.monotonic() - begun < 30
    while any(thread.name == "nsqkit clock" for thread in threading.enumerate()):
        pass
