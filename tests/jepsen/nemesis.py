"""The faults of one broker, drawn from a seed: of its process, and of the connections to it, at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeAlias

from tests.jepsen.process import BrokerProcess
from tests.jepsen.run import Run
from tests.jepsen.wire import TO_BROKER, TO_CLIENT, Wire

Fault: TypeAlias = Callable[[], Awaitable[None]]

CLOCK_STEPS_S: Final = (-86_400, -3_600, -60, 60, 3_600)

DIRECTIONS: Final = ((TO_BROKER,), (TO_CLIENT,), (TO_BROKER, TO_CLIENT))


class Nemesis:
    """Disturbs one broker until the faults are over, and then heals it.

    Args:
        run: the run.
        number: the number of the broker.
        broker: the broker.
        wire: the path to it.
        seed: of the faults.
        pause: the mean number of seconds between two faults.
    """

    def __init__(self, run: Run, number: int, broker: BrokerProcess, wire: Wire, seed: str, pause: float) -> None:
        self._run = run
        self._number = number
        self._broker = broker
        self._wire = wire
        self._random = Random(f"{seed}/process/{number}")
        self._link_random = Random(f"{seed}/link/{number}")
        self._pause = pause
        self._offset_s = 0

    async def disturb_process(self) -> None:
        """Kill, stop, suspend and limit the broker."""
        faults: list[tuple[str, Fault]] = [
            *[("kill", self._kill), ("kill", self._kill), ("terminate", self._terminate)],
            *[("stop", self._suspend), ("stop", self._suspend), ("full disk", self._fill_disk)],
            *[("full disk", self._fill_disk), ("file limit", self._limit_files)],
        ]
        if self._broker.can_shift_clock:
            faults.append(("clock", self._shift_clock))
        while True:
            await self._run.wait(self._random.expovariate(1 / self._pause))
            await self._check_alive()
            if self._run.calm.is_set():
                return
            name, fault = self._random.choice(faults)
            self._record("fault", name)
            await fault()
            self._record("heal", name)

    async def disturb_links(self) -> None:
        """Cut, stall, lose and slice the bytes of its clients."""
        wire, random = self._wire, self._link_random
        faults: list[tuple[str, Callable[[], None]]] = [
            ("cut", wire.cut),
            ("half-open", lambda: wire.half_open(*random.choice(DIRECTIONS))),
            ("stall", lambda: wire.stall(*random.choice(DIRECTIONS))),
            ("slices", wire.slice),
        ]
        while True:
            await self._run.wait(random.expovariate(1 / self._pause))
            if self._run.calm.is_set():
                return
            name, fault = random.choice(faults)
            self._record("fault", name)
            fault()
            await self._run.wait(random.uniform(0, 5))
            wire.heal()
            self._record("heal", name)

    def _record(self, kind: str, name: str) -> None:
        self._run.record(kind, broker=self._number, fault=name)

    async def _check_alive(self) -> None:
        status = self._broker.status
        if status is not None:
            text = f"ended with status {status}: {self._broker.last_words()}"
            self._run.record("died", broker=self._number, text=text)
            await self._start()
            self._record("heal", "kill")

    async def _start(self) -> None:
        await self._broker.start(self._offset_s)

    async def _kill(self) -> None:
        await self._broker.kill()
        await self._run.wait(self._random.uniform(0, 2))
        await self._start()

    async def _terminate(self) -> None:
        await self._broker.terminate()
        await self._start()

    async def _shift_clock(self) -> None:
        self._offset_s = self._random.choice(CLOCK_STEPS_S)
        await self._kill()

    async def _suspend(self) -> None:
        self._broker.suspend()
        try:
            await self._run.wait(self._random.uniform(0, 6))
        finally:
            self._broker.resume()

    async def _fill_disk(self) -> None:
        """Fill the disk, or forbid larger files; in a part of the cases the broker is killed meanwhile."""
        path = self._broker.data_path
        if path.is_mounted:
            path.fill()
        else:
            self._broker.limit_file_size(0)
        await self._run.wait(self._random.uniform(0, 5))
        is_killed = self._random.random() < 0.3 and self._broker.status is None
        if is_killed:
            self._record("fault", "kill")
            await self._broker.kill()
        path.release()
        if is_killed:
            await self._start()
            self._record("heal", "kill")
        elif not path.is_mounted and self._broker.status is None:
            self._broker.unlimit()

    async def _limit_files(self) -> None:
        self._broker.limit_files(self._random.randrange(3))
        await self._run.wait(self._random.uniform(0, 5))
        if self._broker.status is None:
            self._broker.unlimit()
