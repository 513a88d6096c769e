"""The real ``Persistence`` of a broker, run by hand: without an event loop, and without threads.

``nsqkit.broker.persistence`` is loaded once more, with another ``anyio`` and another pool: work of a thread is done
between two pauses, in which the world lets others act, and a stop writes topic after topic. So no copy of its commit is
needed, and the end of a process may come in the middle of it.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace, coroutine
from typing import TYPE_CHECKING, Any

from nsqkit.broker.core import metadata
from tests.broker.core.disk.disks import Content, Ended, MemoryFileStore
from tests.simulation import data_path
from tests.simulation.broken import conclude

if TYPE_CHECKING:
    from random import Random

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.disk.storage import DiskStorage
    from nsqkit.broker.core.options import BrokerOptions


@coroutine
def pause(until: Event | int | None = None) -> Generator[Event | int | None, None, None]:
    """Let others act: once, until an event is set, or until a time in ns."""
    yield until


class _Cancelled(BaseException):
    """The cancellation of a task."""


class Event:
    """``anyio.Event``."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        while not self._is_set:
            await pause(self)


class Lock:
    """``anyio.Lock``, which one coroutine alone uses."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass


async def _run_sync(function: Callable[..., Any], *args: object) -> Any:
    await pause()
    result = function(*args)
    await pause()
    return result


class Pool:
    """``ThreadPoolExecutor`` with one thread, the caller's."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


def load_by_hand(name: str, **names: object) -> ModuleType:
    """Load a module once more, with other ``names`` in it, and run its coroutines without an event loop."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    anyio = SimpleNamespace(Event=Event, Lock=Lock, to_thread=SimpleNamespace(run_sync=_run_sync))
    module.__dict__.update(anyio=anyio, **names)
    return module


PERSISTENCE = load_by_hand("nsqkit.broker.persistence", ThreadPoolExecutor=Pool)


class Disk(MemoryFileStore):
    """The data path of a broker: a ``DirectoryFileStore`` in memory.

    Args:
        files: their bytes, by name.
        note: called with a text for each change, each sync, and each fault.
        clock: returns the time of a change.

    Attributes:
        is_checked: a checker reads, which no fault may meet.
        left: files of topics and channels without a name, which the process before has left.
        sync_failures: the next syncs of files that fail, so that writes succeed and commits do not; None: no faults.
    """

    is_checked = False
    left: frozenset[str] = frozenset()
    sync_failures: int | None = None
    _is_locked = False

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        *,
        note: Callable[[str], None] | None = None,
        clock: Callable[[], int] = int,
    ) -> None:
        super().__init__(files)
        self._note = note
        self._clock = clock
        self._times: dict[Content, int] = {}
        self._has_failed = False
        self._found = self._temporaries()

    def after(self, left: MemoryFileStore) -> Disk:
        """Return the disk with the files that a crash has left."""
        disk = Disk(left.files, note=self._note, clock=self._clock)
        times = {name: self._times.get(content, 0) for name, content in self._names.items()}
        newest = max(times.values(), default=0)  # of a file whose removal was lost
        disk._times = {content: times.get(name, newest) for name, content in disk._names.items()}
        disk.left = data_path.unnamed(disk.files)
        return disk

    def _temporaries(self) -> frozenset[str]:
        return frozenset(name for name in self._names if name.endswith(".tmp"))

    def check_no_temporaries(self) -> None:
        """Check that a process that was stopped has left no temporary file; one that was killed may have."""
        left = self._temporaries() - self._found
        conclude(17, self._has_failed or not left, f"a stop has left {sorted(left)}")

    @property
    def contents(self) -> Mapping[str, Content]:
        """The files by name."""
        return self._names

    @property
    def synced(self) -> dict[str, bytes]:
        """The bytes that a power cut certainly leaves, by the name of the file."""
        return {name: content.synced for name, content in self._synced_names.items()}

    def newest_ns(self, part: str) -> int:
        self.operate()
        return max((self._times.get(content, 0) for name, content in self._names.items() if part in name), default=0)

    def operate(self, content: Content | None = None, data: bytes = b"", position: int = 0) -> None:
        if self.is_checked:
            return
        try:
            super().operate(content, data, position)
        except (OSError, Ended) as error:
            self._has_failed = True
            if self._note is not None:
                self._note("ends the process" if isinstance(error, Ended) else f"fails: {error.strerror}")
            raise

    def write(self, content: Content, position: int, data: bytes) -> None:
        if self._note is not None:
            self._note(f"writes {len(data)} bytes at {position} of {self._name_of(content)}")
        self._times[content] = self._clock()
        super().write(content, position, data)

    @property
    def is_failing(self) -> bool:
        return super().is_failing or self.sync_failures is not None

    def recover(self) -> None:
        super().recover()
        self.sync_failures = None

    def sync_file(self, content: Content) -> None:
        if self.sync_failures:
            self.sync_failures -= 1
            if self._note is not None:
                self._note(f"cannot sync {self._name_of(content)}")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_file(content)
        if self._note is not None:
            self._note(f"has synced {self._name_of(content)}")

    def sync(self) -> None:
        super().sync()
        if self._note is not None:
            self._note("has synced its names")

    def rename(self, name: str, new_name: str) -> None:
        super().rename(name, new_name)
        if self._note is not None:
            self._note(f"has renamed {name} to {new_name}")

    def remove(self, name: str) -> None:
        super().remove(name)
        if self._note is not None:
            self._note(f"has removed {name}")

    def _name_of(self, content: Content) -> str:
        return next((name for name, each in self._names.items() if each is content), "a removed file")

    def act(self, verb: str, values: dict[str, Any], *, is_faulty: bool) -> bool:
        """Perform a step of a plan; return whether messages may be lost by it."""
        match verb:
            case "end disk":
                self.end_after(values["after"])
            case "fill disk" if is_faulty:
                self.capacity = sum(map(len, self.files.values())) + values["room"]
            case "fail disk" if is_faulty:
                self.fail(values["error"], after=values["after"], times=values["times"])
            case "recover disk":
                self.recover()
            case "damage disk" if is_faulty:
                self._damage(values["how"], values["number"])
                return True
        return False

    def _damage(self, how: str, number: int) -> None:
        """Remove a file of a queue, or cut it off, or have zeros at its end."""
        names = [name for name in self.files if "diskqueue" in name]
        if not names:
            return
        name = names[number % len(names)]
        data = self._names[name].data
        size = number % (len(data) + 1)
        if how == "remove":
            del self._names[name]
        else:
            self._names[name] = Content(data[:size] + bytes(len(data) - size if how == "zero" else 0))

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Read without faults."""
        self.is_checked = True
        try:
            yield
        finally:
            self.is_checked = False

    def lock(self) -> None:
        """Raise OSError if another broker, or a start that failed, has the disk still."""
        if self._is_locked:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._is_locked = True

    def close(self) -> None:
        self._is_locked = False

    abandon = close

    def free_removed(self) -> None:
        """Do nothing."""


class Committer:
    """Runs the persistence of one broker; its next step is due after a random time.

    Attributes:
        persistence: the real one.
        is_idle: it waits for work.
    """

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions,
        random: Random,
        delays_ns: tuple[int, ...],
        storage_type: type[DiskStorage],
    ) -> None:
        PERSISTENCE.__dict__["DiskStorage"] = storage_type  # of the ordinary mode
        self.persistence: Any = PERSISTENCE.Persistence(disk, options, after=lambda: None)
        self._disk = disk
        self._random = random
        self._delays_ns = delays_ns
        self._run: Generator[Event | int | None, None, None] | None = None
        self._waits_for: Event | int | None = None
        self._due_ns: int | None = None
        self._now_ns = 0
        self._broker: Broker | None = None
        self._named_revision = -1  # whose names have been compared

    def now_ns(self) -> int:
        """The time, as its clock."""
        return self._now_ns

    async def wait_until(self, time_ns: int) -> None:
        """Pause, as its clock."""
        await pause(time_ns)

    def start(self, broker: Broker, now_ns: int) -> None:
        """Open the data path.

        Raises:
            OSError, OptionError: it cannot be opened.
        """
        self.persistence.open(broker, now_ns)
        self._broker = broker
        self._run = self.persistence.run(broker, self).__await__()
        self._waits_for = None
        self.step(now_ns)

    def stop(self, broker: Broker) -> None:
        """End as the broker's process does: cancel what runs, then write everything."""
        assert self._run is not None
        with suppress(_Cancelled):
            self._run.throw(_Cancelled)
        self.persistence.close(broker)
        self._disk.check_no_temporaries()

    def drop(self) -> None:
        """End without a word; the disk was copied before, so a change of it does not count."""
        self._disk.is_checked = True
        if self._run is not None:
            self._run.close()

    @property
    def is_idle(self) -> bool:
        return isinstance(self._waits_for, Event) and not self._waits_for.is_set()

    def check_names(self) -> None:
        """Check that the names on the disk are those of the broker, unless they are being written."""
        broker = self._broker
        if broker is None or not self.is_idle or broker.changes.revision == self._named_revision:
            return
        self._named_revision = broker.changes.revision
        with self._disk.checked():
            written, document = self._disk.read(metadata.FILE_NAME), metadata.document(broker)
        conclude(14, written == document, f"the names on the disk are {written!r}, not {document!r}")

    @property
    def is_pausing(self) -> bool:
        """Whether it waits for a time, after a failure."""
        return isinstance(self._waits_for, int)

    def next_deadline(self, now_ns: int) -> int | None:
        """Return when to call ``step``."""
        if self.is_idle:
            self._due_ns = None
        elif self._due_ns is None:
            wait_ns = self._random.choice(self._delays_ns)
            self._due_ns = self._waits_for if isinstance(self._waits_for, int) else now_ns + wait_ns
        return self._due_ns

    def step(self, now_ns: int) -> None:
        """Go on to the next pause."""
        assert self._run is not None
        self._now_ns, self._due_ns = now_ns, None
        self._waits_for = next(self._run)
