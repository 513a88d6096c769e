"""A connection of a world: a client's machine and a broker's session, and the bytes between them.

        machine ──▶ up ──▶ ┐      ┌ ──▶ session
                           │ link │
        machine ◀── down ◀ ┘      └ ◀── session

The link is that of ``nsqkit.testing`` in some worlds, for its faults, and is left out in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from nsqkit.client.session import ClientSession
from nsqkit.errors import BrokerError, NSQError, OptionError
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import Link
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response
from tests.rules import AllowAll
from tests.simulation.broken import conclude
from tests.simulation.foreign import ForeignRules, Refusal, Refused
from tests.simulation.invariants import check_later
from tests.simulation.network import END, Pipe, act_on_pipes
from tests.simulation.reader import Reader
from tests.stepping import step

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.wire.commands import Command
    from nsqkit.wire.rules import Rules
    from tests.simulation.node import Node
    from tests.simulation.world import World

_NO_JOURNAL = Journal(enabled=False)


class Owner(Protocol):
    """The player that a connection belongs to."""

    def handle_events(self, connection: Connection, events: Sequence[object]) -> None:
        """Process the events of the connection's machine."""
        ...

    def before_command(self, connection: Connection, command: Command) -> None:
        """Check a command that the broker is about to receive."""
        ...


class Connection:
    """See the module.

    Attributes:
        machine: the client's.
        session: the broker's; None once the broker has closed the connection, or is gone.
        close_ns: the client reads what it was sent so slowly that the broker closes the connection not before.
    """

    def __init__(
        self,
        world: World,
        owner: Owner,
        node: Node,
        machine: ClientSession[Any],
        name: str,
        rules: ForeignRules | None = None,
    ) -> None:
        self._world, self.owner, self.node, self.machine, self.name = world, owner, node, machine, name
        self.agenda_ns: int | None = None
        self.is_touched = False
        self.address = name
        seed, options = world.plan.seed, world.plan.options
        self.up, self.down = (
            Pipe(Random(f"{seed}/{name}/{way}"), 1000 * options.get("delay_us", 0), options.get("slice_max", 0))
            for way in ("up", "down")
        )
        self._link = Link(name, _NO_JOURNAL, node.faults) if options.get("has_double") else None
        self._at_end = False
        self.close_ns = 0
        self._rules = rules
        self._is_refused = False  # nothing that follows is a command
        self._commands = self._make_decoder(rules or AllowAll())
        self._received: list[bytes] = []
        self._frames = FrameDecoder()
        self._reader = Reader()
        self.session: Session | None = node.open_session(self)

    @property
    def is_over(self) -> bool:
        return self.machine.ended and self.session is None

    def wake(self) -> None:
        """Have the client's output sent."""
        self._world.touch(self)

    flush = wake

    def heal(self) -> None:
        """End the faults of the network; a connection that has lost bytes is reset."""
        now_ns = self._world.now_ns
        self.close_ns = 0
        self._world.touch(self.node)
        for pipe in (self.up, self.down):
            pipe.slow_down(0)
            if pipe.is_lost:
                self.up.reset(now_ns)
                self.down.reset(now_ns)
        self._world.touch(self)

    @property
    def sends(self) -> bool:
        """Whether bytes are on their way to the broker, which may publish more messages."""
        is_delayed = self._link is not None and self._link.next_deadline() is not None
        return self.session is not None and (self.up.next_arrival is not None or is_delayed)

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        act_on_pipes(self.up, self.down, verb, values, self._world.now_ns)
        if verb == "late end":
            self.close_ns = self._world.now_ns + 1000 * values["for_us"]
        elif verb == "fault" and self._link is not None:
            if values.get("clear"):
                self.node.faults.clear()
            with suppress(OptionError):  # a rule of the same kind is there already
                getattr(self.node.faults, values["name"])(*values["words"], **values["limits"], client=self.name)
        self._world.touch(self)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        due_ns = self.machine.next_deadline()
        if (arrival_ns := self.down.next_arrival) is not None and (due_ns is None or arrival_ns < due_ns):
            due_ns = arrival_ns
        if (arrival_ns := self.up.next_arrival) is not None and self.session is not None:
            arrival_ns = max(arrival_ns, self.node.resume_ns)
            if due_ns is None or arrival_ns < due_ns:
                due_ns = arrival_ns
        if self._link is not None and (leaves_ns := self._link.next_deadline()) is not None:
            due_ns = leaves_ns if due_ns is None else min(due_ns, leaves_ns)
        return due_ns

    def handle_deadline(self, now_ns: int) -> None:
        """Deliver the bytes that have arrived, on both sides."""
        if self._link is not None:
            if (due_ns := self._link.next_deadline()) is not None and due_ns <= now_ns:
                self._link.handle_deadline(now_ns)
            self._leave_link(now_ns)
        if now_ns >= self.node.resume_ns:
            for data in self.up.receive(now_ns):
                self._arrive(data, now_ns)
        for data in self.down.receive(now_ns):
            if data == END:
                self.machine.receive_eof(now_ns)
            self._step(b"" if data == END else data)
        if self._has_work(now_ns):
            self._step(b"")
        check_later(self.machine, now_ns)

    def service(self) -> None:
        """Send the client's output."""
        now_ns = self._world.now_ns
        while self._has_work(now_ns) and self._step(b""):
            pass
        if self.machine.ended:
            self.up.send(END, now_ns)
        if self._link is not None:
            self._leave_link(now_ns)

    # ---- from the client ---------------------------------------------------------------------------------------------

    def _has_work(self, now_ns: int) -> bool:
        """Whether a step without input has any effect on the client's machine."""
        machine = self.machine
        if machine.has_output or machine.has_events or machine.has_input:
            return True
        return (due_ns := machine.next_deadline()) is not None and due_ns <= now_ns

    def _step(self, data: bytes) -> bool:
        """Drive the client's machine; return whether it had output or events."""
        output, events = step(self.machine, data, self._world.now_ns)
        if output:
            self.up.send(output, self._world.now_ns)
        if events:
            self.owner.handle_events(self, events)
        return bool(output or events)

    def _arrive(self, data: bytes, now_ns: int) -> None:
        if self._link is None:
            self._receive(data)
            return
        end = self._link.client_end
        if data == END:
            end.receive_eof(now_ns)
        else:
            end.receive_data(data, now_ns)
        self._leave_link(now_ns)

    def _leave_link(self, now_ns: int) -> None:
        assert self._link is not None
        end = self._link.broker_end
        if end.has_output:
            if data := end.data_to_send():
                self._receive(data)
            if end.ended and not self._at_end:
                self._at_end = True
                self._receive(END)
        end = self._link.client_end
        if end.has_output:
            if data := end.data_to_send():
                self.down.send(data, now_ns)
            if end.ended:
                self.down.send(END, now_ns)

    def _receive(self, data: bytes) -> None:
        session = self.session
        if session is None or session.ended:
            return
        if data == END:
            self.node.end_input(session, self._end_commands())
        elif self._rules is None:
            self.node.receive(session, data, list(self._read_commands(data)))
        else:
            self._receive_foreign(session, data, self._rules)

    def _make_decoder(self, rules: Rules) -> CommandDecoder:
        options = self.node.options
        return CommandDecoder(rules, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size)

    def _end_commands(self) -> BrokerError | None:
        """Return the error of a body that was cut off; the same bytes in one piece must give the same one."""
        error = self._commands.end()
        if not self._is_refused:
            whole = self._make_decoder(AllowAll())
            for _ in whole.feed(b"".join(self._received)):
                pass
            conclude(11, repr(whole.end()) == repr(error), f"{self.name}: {error!r} at the end, not {whole.end()!r}")
        return error

    def _read_commands(self, data: bytes) -> Iterator[Command]:
        self._received.append(self._reader.read_up(data))
        for command in self._commands.feed(self._received[-1]):
            self._world.note("%s ▶ %s: %s", self.name, self.node.name, command)
            yield command

    def _receive_foreign(self, session: Session, data: bytes, rules: ForeignRules) -> None:
        """Find the commands that the broker has to accept, and the one that it has to refuse."""
        commands: list[Command] = []
        refused: Refusal | None = None
        if self._is_refused:  # and the refusal waits for an auth server
            self.node.receive(session, data, commands)
            return
        try:
            for command in self._read_commands(data):
                rules.execute(command, self.node.broker)
                commands.append(command)
        except (NSQError, Refused) as error:
            refused, self._is_refused = error, True
        self.node.receive(session, data, commands, refused)

    # ---- from the broker ---------------------------------------------------------------------------------------------

    def answer(self, data: bytes) -> None:
        """Send bytes of the broker, END for the end."""
        now_ns = self._world.now_ns
        if data == END:
            self.session = None
        if self._link is None:
            self.down.send(data, now_ns)
        elif data == END:
            self._link.broker_end.receive_eof(now_ns)
        else:
            self._link.broker_end.receive_data(data, now_ns)
        self._world.touch(self)

    def read_frames(self, data: bytes) -> list[Response | BrokerError | MessageFrame]:
        """Return the frames in bytes of the broker."""
        return self._frames.feed(self._reader.read_down(data))

    def lose_broker(self) -> None:
        """Lose the broker's end, and some of the bytes that it sent."""
        self.session = None
        self.down.reset(self._world.now_ns)
        self._world.touch(self)

    def note_frames(self, frames: Sequence[object]) -> None:
        """Write what the broker sends into the trace."""
        if self._world.is_traced:
            for frame in frames:
                text = (
                    f"{frame.body!r} attempt {frame.attempts} id {frame.id!r}"
                    if isinstance(frame, MessageFrame)
                    else repr(frame)
                )
                self._world.note("%s ◀ %s: %s", self.name, self.node.name, text)
