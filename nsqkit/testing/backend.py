"""The nsqd behind the proxy of a test server: in this process, in its own, or at an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from nsqkit.errors import OptionError
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.embedded import EmbeddedNsqd
from nsqkit.testing.errors import refuse
from nsqkit.testing.link.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from anyio.abc import ByteStream

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.server import Nsqd
    from nsqkit.options.durations import Seconds
    from nsqkit.testing.clock import Mode
    from nsqkit.testing.disk import Disk
    from nsqkit.testing.ports import KeptPort
    from nsqkit.testing.state import NsqdState


class Backend(Protocol):
    """An nsqd that can be started and stopped any number of times. All methods run in the loop thread."""

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; empty without HTTP."""
        ...

    @property
    def nsqd(self) -> Nsqd:
        """The broker; raise Unsupported where it is not in this process."""
        ...

    @property
    def disk(self) -> Disk | None:
        """The faults of a broker's files, if it is in this process and has files."""
        ...

    async def start(self, tcp_address: str, http_port: KeptPort, *, keep_data: bool) -> None:
        """Return when it answers.

        Args:
            tcp_address: that of the proxy, to be announced to nsqlookupd.
            http_port: where it listens for HTTP clients.
            keep_data: begin with the topics, channels and messages of the last stop.

        Raises:
            OptionError: an option cannot be used.
            OSError: an address or a file cannot be used.
            StartFailed: it does not answer.
        """
        ...

    async def connect(self, name: str) -> ByteStream:
        """Return a new connection for the client of this address; raise OSError or Closed if that is not possible."""
        ...

    async def stop(self, *, keep_data: bool) -> None:
        """End it; the last bytes for its clients are sent. With ``keep_data`` another start may want the data."""
        ...

    async def kill(self) -> None:
        """End it as a crash would: nothing is sent or saved."""
        ...

    async def state(self) -> NsqdState:
        """Return its present state."""
        ...

    async def publish(self, topic: str, bodies: Sequence[bytes], delay: Seconds | None) -> None:
        """Publish messages without a client; raise OptionError for values that nsqd refuses."""
        ...

    async def reset(self) -> None:
        """Delete the topics; of an nsqd at an address only those that clients of this server have created."""
        ...


def make_clock(clock: Mode | ControlledClock, backend: str | Sequence[str] | None) -> ControlledClock:
    """Return the clock of a server.

    Raises:
        OptionError: there is no such mode.
        Unsupported: the nsqd has its own clock, and another one is required.
    """
    made = clock if isinstance(clock, ControlledClock) else ControlledClock(clock)
    if backend is None or backend == "embedded":
        return made
    if isinstance(clock, ControlledClock) or clock in {"manual", "auto"}:
        refuse(_name(backend), "a clock that the test moves is not possible")
    from nsqkit.testing.external import RealClock

    return RealClock(_name(backend))


def make_journal(backend: str | Sequence[str] | None, topics: set[str], *, enabled: bool) -> Journal:
    """Return the journal of a server; with an nsqd at an address it notes the clients' topics in ``topics``."""
    if not isinstance(backend, str) or backend in {"embedded", "process"}:
        return Journal(enabled=enabled)
    from nsqkit.testing.remote import NamingJournal

    return NamingJournal(topics, enabled=enabled)


def make_backend(
    backend: str | Sequence[str] | None,
    options: BrokerOptions,
    clock: ControlledClock,
    *,
    seed: int | None,
    given: Collection[str],
    named_topics: Callable[[], set[str]],
) -> Backend:
    """Return the nsqd of a server.

    Args:
        backend: "embedded", also None; "process"; the words of a command line; or an address (``RemoteNsqd``).
        options: nsqd's flags.
        clock: the time.
        seed: of an embedded broker's random numbers.
        given: the names of the options that the test has given.
        named_topics: returns the topics that clients of this server have named.

    Raises:
        OptionError: there is no such backend.
        Unsupported: it cannot have these options.
    """
    if backend is None or backend == "embedded":
        return EmbeddedNsqd(options, clock, seed)
    if backend == "process" or not isinstance(backend, str):
        from nsqkit.testing.process import ProcessNsqd, default_command

        command = default_command() if isinstance(backend, str) else _command(backend)
        return ProcessNsqd(options, command)
    from nsqkit.testing.remote import RemoteNsqd

    if ":" not in backend:
        raise OptionError(
            f"backend is {backend!r}; allowed are 'embedded', 'process', the words of a command line, and the address "
            "host:port of a running nsqd"
        )
    if given:
        refuse(backend, f"the options {', '.join(given)} cannot be set")
    return RemoteNsqd(backend, named_topics)


def _command(words: object) -> list[str]:
    if not isinstance(words, Sequence) or not words or not all(isinstance(word, str) for word in words):
        raise OptionError(f"backend is {words!r}; the words of a command line are a list of one or more texts")
    return list(words)


def _name(backend: object) -> str:
    return backend if isinstance(backend, str) else "process"
