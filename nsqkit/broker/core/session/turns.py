"""How a session acts on what its client sends: in turns, each of a bounded length.

The rule it guards: no client keeps the others waiting, whatever one read has brought. A turn ends after so many words
of commands, whatever they decompress from, or when the outbox is full; the rest is kept and acted on in the next turn,
which the pump begins by ``process_input`` after all other sessions had theirs. Words are counted, not time, so that a
run can be repeated.

How to read it: ``receive_data`` and ``process_input`` are one turn each; ``_act`` is the loop over the commands. What
a command does is for ``nsqkit.broker.core.session.session``, which builds on this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nsqkit.broker.core.session.frame_buffer import Unfinished, Wait
from nsqkit.errors import BrokerError, ProtocolError

if TYPE_CHECKING:
    from nsqkit.broker.core.session.frame_buffer import FrameBuffer
    from nsqkit.broker.core.session.heartbeat import Heartbeat
    from nsqkit.wire.commands import Command

TURN_COMMANDS_MAX: Final = 1000
"""Commands that are acted on in one turn; a row of FINs is one, and so is a row of PUBs."""

TURN_WORDS_MAX: Final = 5000
"""Words of commands that are acted on in one turn, which is more than a consumer with an RDY of 2500 answers at once.

A command without words counts as one, a command with messages as one for each of them, and each id of a row of FINs.
What layers decode counts as four words for each KiB: a small buffer may decompress to much that is no whole command.
"""

TURN_WORDS: Final = 100
"""The same for a session with short turns, because others wait for answers: see ``Turns._has_short_turns``."""


class Turns:
    """The input of one session.

    Args:
        buffer: where it comes from.
        heartbeat: is told when a command was heard.
        settle: called with the time at the end of each turn, to see to what follows from it.
        now_ns: the time at which the client connected.

    Attributes:
        ended: no more commands are acted on.
    """

    __slots__ = ("_buffer", "_eof_came", "_has_more", "_heartbeat", "_now_ns", "_settle", "ended")

    def __init__(
        self, buffer: FrameBuffer, heartbeat: Heartbeat, settle: Callable[[int], None], now_ns: int
    ) -> None:
        self.ended = False
        self._buffer = buffer
        self._heartbeat = heartbeat
        self._settle = settle
        self._now_ns = now_ns
        self._eof_came = False
        self._has_more = False  # something is left for the next turn

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Work through what one read has returned, as far as one turn goes."""
        if self.ended:
            return
        self._now_ns = now_ns
        self._buffer.receive(data)
        if not (self._buffer.waits or self._has_more):
            self._take_turn()

    @property
    def has_input(self) -> bool:
        """True while something is left for the next turn and nothing keeps it from being acted on."""
        return self._has_more and not (self.ended or self._buffer.is_full)

    def process_input(self, now_ns: int) -> None:
        """Act on what is left, as far as one turn goes."""
        if self.has_input:
            self._now_ns = now_ns
            self._take_turn()
            if self._eof_came:
                self.receive_eof(now_ns)

    def receive_eof(self, now_ns: int) -> None:
        """Record that the client sends nothing more; what it has sent is acted on before the session ends."""
        if self._buffer.waits or self._has_more:
            self._eof_came = True
        elif not self.ended:
            self._now_ns = now_ns
            self._end_of_input(self._buffer.end())

    def _let_go_on(self) -> None:
        """Have what waits acted on in the next turn."""
        if self._buffer.waits:
            self._buffer.waits = False
            self._has_more = True

    def _take_turn(self) -> None:
        buffer = self._buffer
        self._has_more = False
        try:
            self._act()
        except (BrokerError, ProtocolError) as error:
            self._fail(error)
        if not buffer.is_plain:
            if buffer.has_output:  # the layers' own
                self._write()
            if buffer.at_end:
                self.receive_eof(self._now_ns)
        self._settle(self._now_ns)

    def _act(self) -> None:
        """Act on commands until none is left, one has to wait, or the turn is over."""
        buffer, heartbeat, actions = self._buffer, self._heartbeat, self._actions
        words, count, decoded_size = 0, 0, buffer.decoded_size
        while (commands := buffer.next_commands()) is not None:
            if buffer.decoded_size != decoded_size:
                words += (buffer.decoded_size - decoded_size) >> 8
                decoded_size = buffer.decoded_size
            try:
                for command in commands:
                    heartbeat.heard_ns = self._now_ns
                    actions[command.verb](self, command)
                    words += len(command.bodies) or len(command.params) or 1
                    count += 1
                    if words >= TURN_WORDS and not buffer.is_drained and self._is_over(words, count):
                        buffer.keep(commands)
                        break
            except Wait:
                buffer.wait(command, commands)
                return
            except Unfinished:
                buffer.keep(iter((command,)), commands)
                words = TURN_WORDS_MAX
            if self.ended:
                return
            if words >= TURN_WORDS and buffer.has_unread and self._is_over(words, count):
                self._has_more = True
                return

    def _is_over(self, words: int, count: int) -> bool:
        """Tell whether a turn is over after so many words, ``TURN_WORDS`` at least, of so many commands."""
        return (
            count >= TURN_COMMANDS_MAX
            or words >= TURN_WORDS_MAX
            or self._buffer.is_full
            or self._has_short_turns
        )

    # ---- what a session says of itself -----------------------------------------------------------------------------

    @property
    def _actions(self) -> Mapping[bytes, Callable[[Any, Command], None]]:
        """What each command does, by its first word.

        It may raise a BrokerError to refuse the command, which ends the session; ``Wait`` to have it wait until
        ``_let_go_on`` is called, and then be called again; ``Unfinished`` to be called again in the next turn.
        """
        raise NotImplementedError

    @property
    def _has_short_turns(self) -> bool:
        """Whether its turns are to be short."""
        raise NotImplementedError

    def _fail(self, error: BrokerError | ProtocolError) -> None:
        """End the session because of what its client has sent."""
        raise NotImplementedError

    def _end_of_input(self, cut_off: BrokerError | None) -> None:
        """End the session because its client sends nothing more; what to answer if that cut a command off."""
        raise NotImplementedError

    def _write(self) -> None:
        """Have sent what there is to send."""
        raise NotImplementedError
