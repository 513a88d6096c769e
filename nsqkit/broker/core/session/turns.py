"""The input of a session, processed in turns of bounded length.

No client keeps the others waiting, however much one read has returned. A turn ends after a number of words of commands,
however small the bytes that they were decompressed from, or when the outbox is full. The rest is kept for the next
turn, which the driver starts by ``process_input`` after all other sessions had theirs. Words are counted, not time, so
that a run can be repeated.

``receive_data`` and ``process_input`` are one turn each; ``_process`` is the loop over the commands. The actions of
commands are in ``nsqkit.broker.core.session.session``, which builds on this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsqkit.broker.core.session.frame_buffer import Unfinished, Wait
from nsqkit.errors import BrokerError, ProtocolError

if TYPE_CHECKING:
    from nsqkit.broker.core.session.frame_buffer import FrameBuffer
    from nsqkit.broker.core.session.heartbeat import Heartbeat
    from nsqkit.broker.core.session.sessions import Sessions

TURN_COMMANDS_MAX: Final = 1000
"""Commands that are processed in one turn; a run of FINs counts as one, and so does a run of PUBs."""

TURN_WORDS_MAX: Final = 5000
"""Words of commands that are processed in one turn, more than a consumer with an RDY of 2500 sends at once.

A command without words counts as one, a command with messages as one for each of them, and each id of a run of FINs.
The output of layers counts as four words for each KiB: a small buffer may decompress to many bytes without one whole
command.
"""

SHORT_TURN_WORDS_MAX: Final = 100
"""The same for a session with short turns: see ``Turns._has_short_turns``."""


class Turns:
    """The input of one session.

    Args:
        sessions: the things that it shares with the broker's other sessions.
        buffer: the commands.
        heartbeat: where the time of the last command is kept.
        now_ns: the time at which the client connected.

    Attributes:
        ended: no more commands are processed.
    """

    __slots__ = ("_buffer", "_end_reason", "_eof_received", "_has_more", "_heartbeat", "_now_ns", "_sessions", "ended")

    def __init__(self, sessions: Sessions[Any], buffer: FrameBuffer, heartbeat: Heartbeat, now_ns: int) -> None:
        self.ended = False
        self._sessions = sessions
        self._buffer = buffer
        self._heartbeat = heartbeat
        self._now_ns = now_ns
        self._end_reason: str | None = None  # of the end that waits for a commit
        self._eof_received = False
        self._has_more = False  # input is left for the next turn

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Process the bytes that one read has returned, as far as one turn goes."""
        if self.ended:
            return
        self._now_ns = now_ns
        buffer = self._buffer
        if buffer.is_suspended or self._has_more:
            buffer.unread.append(data)
        elif buffer.is_plain:
            self._take_turn(data)
        else:
            buffer.unread.append(data)
            self._take_turn()

    def process_input(self, now_ns: int) -> None:
        """Process the input that is left, as far as one turn goes."""
        if self.has_input:
            self._now_ns = now_ns
            self._take_turn()
            if self._eof_received:
                self.receive_eof(now_ns)

    def receive_eof(self, now_ns: int) -> None:
        """Record that the client sends nothing more; its commands have their answers before the session ends."""
        if self._buffer.is_suspended or self._has_more or self._buffer.is_holding:
            self._eof_received = True
            self._stop_delivery()
        elif not self.ended:
            self._now_ns = now_ns
            self._end_of_input(self._buffer.end())

    def _end_in_order(self, reason: str) -> None:
        """End the session, and process no more commands, once the answers that wait for a commit are released."""
        if self._buffer.is_holding:
            self._end_reason = reason
            self._buffer.is_suspended = True
            self._stop_delivery()
        else:
            self.end(reason)

    def _resume(self) -> None:
        """Let the command that waits be processed in the next turn, or end the session if that waits."""
        if self._end_reason is not None:
            self.end(self._end_reason)
        elif self._buffer.is_suspended:
            self._buffer.is_suspended = False
            self._has_more = True

    def _take_turn(self, data: bytes | None = None) -> None:
        buffer = self._buffer
        self._has_more = False
        try:
            self._process(data)
        except (BrokerError, ProtocolError) as error:
            self._fail(error)
        if not buffer.is_plain:
            if buffer.has_output:  # of the layers
                self._record_output()
            if buffer.at_end:
                self.receive_eof(self._now_ns)

    def _process(self, data: bytes | None) -> None:
        """Process commands until none is left, one has to wait, or the turn is over; first those of ``data``."""
        buffer, heartbeat, actions = self._buffer, self._heartbeat, self._sessions.actions
        words, count, decoded_size = 0, 0, buffer.decoded_size
        commands = buffer.next_commands() if data is None else buffer.decoder.feed(data)
        while commands is not None:
            if buffer.decoded_size != decoded_size:
                words += (buffer.decoded_size - decoded_size) >> 8
                decoded_size = buffer.decoded_size
            try:
                for command in commands:
                    heartbeat.received_ns = self._now_ns
                    words += actions[command.verb](self, command) or 0
                    words += len(command.bodies) or len(command.params) or 1
                    count += 1
                    if words >= SHORT_TURN_WORDS_MAX and not buffer.is_drained and self._is_over(words, count):
                        buffer.put_back(commands)
                        break
            except Wait:
                buffer.suspend(command, commands)
                return
            except Unfinished:
                buffer.put_back(iter((command,)), commands)
                words = TURN_WORDS_MAX
            if self.ended:
                return
            if buffer.is_plain and not (buffer.begun or buffer.unread):
                return
            if words >= SHORT_TURN_WORDS_MAX and buffer.has_unread and self._is_over(words, count):
                self._has_more = True
                return
            commands = buffer.next_commands()

    def _is_over(self, words: int, count: int) -> bool:
        """Return whether a turn is over after so many words, SHORT_TURN_WORDS_MAX at least, of ``count`` commands."""
        return count >= TURN_COMMANDS_MAX or words >= TURN_WORDS_MAX or self._buffer.is_full or self._has_short_turns

    # ---- implemented by Session --------------------------------------------------------------------------------------

    def end(self, reason: str | None) -> None:
        """Process no more commands, and have the connection closed when the output is sent.

        Args:
            reason: for the log; None to log nothing.
        """
        raise NotImplementedError

    @property
    def has_input(self) -> bool:
        """True while input is left for the next turn and can be processed."""
        raise NotImplementedError

    @property
    def _has_short_turns(self) -> bool:
        """Whether its turns are short, because publishers wait for answers."""
        raise NotImplementedError

    def _fail(self, error: BrokerError | ProtocolError) -> None:
        """End the session because of its client's bytes."""
        raise NotImplementedError

    def _stop_delivery(self) -> None:
        """Have no more messages delivered."""
        raise NotImplementedError

    def _end_of_input(self, cut_off: BrokerError | None) -> None:
        """End the session because its client sends nothing more; ``cut_off`` answers an incomplete command."""
        raise NotImplementedError

    def _record_output(self) -> None:
        """Record that there is output."""
        raise NotImplementedError
