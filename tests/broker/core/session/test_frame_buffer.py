from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.session.frame_buffer import OUTBOX_SIZE_MAX, FrameBuffer
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.compression import PIECE_SIZE_MAX, Deflate
from tests.rules import AllowAll


def make_frame_buffer() -> FrameBuffer:
    return FrameBuffer(CommandDecoder(AllowAll(), max_msg_size=1000, max_body_size=1000))


def begun() -> FrameBuffer:
    buffer = make_frame_buffer()
    assert verbs(buffer, b"  V2") == []
    return buffer


def verbs(buffer: FrameBuffer, *data: bytes) -> list[bytes]:
    """Return the verbs of all commands that ``buffer`` has, after it was given ``data``."""
    for piece in data:
        buffer.unread.append(piece)
    found = []
    while (commands := buffer.next_commands()) is not None:
        found += [command.verb for command in commands]
    return found


def test_frames_are_sent_in_order_joined_once():
    buffer = begun()
    assert not buffer.has_output
    buffer.send(b"a")
    buffer.send_all([b"b", b"c"])
    assert buffer.has_output
    assert buffer.size == 3
    assert buffer.take() == b"abc"
    assert buffer.take() == b""
    assert buffer.size == 0
    assert not buffer.has_output


def test_held_frames_and_later_ones_wait():
    buffer = begun()
    buffer.send(b"a")
    buffer.hold(1)
    buffer.send(b"b")
    buffer.hold(1)
    buffer.send(b"c")
    buffer.hold(2)
    buffer.send(b"d")
    assert buffer.take() == b"a"
    assert not buffer.has_output
    assert buffer.is_holding
    buffer.release(1)
    assert buffer.take() == b"bc"
    buffer.send(b"e")
    buffer.release(2)
    assert not buffer.is_holding
    buffer.send(b"f")
    assert buffer.take() == b"def"
    assert buffer.size == 0


def test_buffer_is_full_until_its_bytes_are_taken():
    buffer = begun()
    buffer.send(b"x" * OUTBOX_SIZE_MAX)
    assert buffer.is_full
    buffer.take()
    assert not buffer.is_full


def test_suspended_command_and_later_ones_wait():
    buffer = begun()
    buffer.unread.append(b"NOP\nRDY 1\nCLS\n")
    commands = buffer.next_commands()
    assert commands is not None
    assert next(commands).verb == b"NOP"
    buffer.suspend(next(commands), commands)
    assert buffer.is_suspended
    buffer.unread.append(b"RDY 2\nRD")
    buffer.unread.append(b"Y 3\n")
    again = buffer.next_commands()
    assert again is not None
    buffer.suspend(next(again), again)
    assert verbs(buffer, b"NOP\n") == [b"RDY", b"CLS", b"RDY", b"RDY", b"NOP"]
    assert not buffer.has_unread


def test_started_input_comes_before_later_input():
    buffer = begun()
    buffer.unread.append(b"NOP\nCLS\nRDY 1\n")
    for verb in (b"NOP", b"CLS", b"RDY"):
        commands = buffer.next_commands()
        assert commands is not None
        assert next(commands).verb == verb
        assert buffer.is_drained == (verb == b"RDY")
        buffer.put_back(commands)
        assert buffer.has_unread
        buffer.unread.append(b"SUB a b\n")
    assert verbs(buffer) == [b"SUB"] * 3


def test_many_interruptions_do_not_nest():
    buffer = begun()
    count = 3 * sys.getrecursionlimit()
    buffer.unread.append(b"NOP\n" * count)
    for _ in range(count):
        commands = buffer.next_commands()
        assert commands is not None
        buffer.suspend(next(commands), commands)
        buffer.unread.append(b"CLS\n")
    assert verbs(buffer) == [b"NOP"] * count + [b"CLS"] * count


@pytest.mark.parametrize("layers", [0, 1, 2])
@given(st.data())
def test_upgrade_takes_effect_between_two_bytes(layers, data):
    """One side sends a command before each layer and one after the last; they arrive however the bytes are cut."""
    theirs = [Deflate(6) for _ in range(layers)]
    sent = b"  V2"
    for depth in range(layers + 1):
        piece = b"RDY %d\n" % depth
        for layer in reversed(theirs[:depth]):
            piece = layer.encode(piece)
        sent += piece
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    buffer = make_frame_buffer()
    seen, answers = [], b""

    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        buffer.unread.append(sent[start:end])
        while (commands := buffer.next_commands()) is not None:
            for command in commands:
                seen.append(command.params[0])
                buffer.send(b"<" + command.params[0])
                if len(seen) <= layers:
                    buffer.upgrade(Deflate(6), above=len(seen) - 1)
                    buffer.send(b">")
        answers += buffer.take()
    assert seen == [b"%d" % depth for depth in range(layers + 1)]
    for depth in range(layers):
        plain = b"<%d" % depth if not depth else b"><%d" % depth
        assert answers.startswith(plain)
        answers = b"".join(theirs[depth].decode(answers[len(plain) :]))
    assert answers == (b"><%d" if layers else b"<%d") % layers


class Loud:
    """A layer that has output itself, and swaps the case of letters."""

    def __init__(self, own: bytes = b"") -> None:
        self.own = own
        self.at_end = False

    @property
    def has_output(self) -> bool:
        return bool(self.own)

    def decode(self, data: bytes) -> Iterator[bytes]:
        yield data.swapcase()

    def encode(self, data: bytes) -> bytes:
        own, self.own = self.own, b""
        return own + data.swapcase()


def test_bytes_behind_two_upgrades_go_through_both():
    buffer = begun()
    inner, outer = Deflate(6), Loud()
    buffer.unread.append(b"NOP\n" + outer.encode(Deflate(6).encode(b"CLS\n")))
    commands = buffer.next_commands()
    assert commands is not None
    assert next(commands).verb == b"NOP"
    buffer.upgrade(outer)
    buffer.send(b"ok")
    buffer.upgrade(inner, above=1)
    assert list(commands) == []
    assert verbs(buffer) == [b"CLS"]
    assert buffer.take() == b"OK"


def test_bytes_behind_an_upgrade_are_processed_before_later_ones():
    buffer = begun()
    buffer.unread.append(b"NOP\nrdy 1\n")
    commands = buffer.next_commands()
    assert commands is not None
    buffer.suspend(next(commands), commands)
    buffer.unread.append(b"rdy 2\n")
    seen = []
    while (commands := buffer.next_commands()) is not None:
        for command in commands:
            seen.append((command.verb, *command.params))
            if command.verb == b"NOP":
                buffer.upgrade(Loud())
    assert seen == [(b"NOP",), (b"RDY", b"1"), (b"RDY", b"2")]


def test_many_upgrades_do_not_nest():
    count = 2 * sys.getrecursionlimit()
    sent = b""
    for _ in range(count):
        sent = b"NOP\n" + sent.swapcase()
    buffer = begun()
    buffer.unread.append(sent)
    seen = 0
    while (commands := buffer.next_commands()) is not None:
        for _ in commands:
            seen += 1
            buffer.upgrade(Loud())
    assert seen == count


def test_layers_decode_one_piece_at_a_time():
    buffer = begun()
    buffer.upgrade(Deflate(6))
    buffer.unread.append(Deflate(6).encode(b"NOP\n" * PIECE_SIZE_MAX))
    counts = []
    while (commands := buffer.next_commands()) is not None:
        counts.append(len(list(commands)))
    assert counts == [PIECE_SIZE_MAX // 4] * 4


def test_bytes_of_a_layer_are_sent_without_a_frame():
    buffer = begun()
    buffer.upgrade(Loud(b"hello"))
    assert buffer.has_output
    assert buffer.take() == b"hello"
    assert not buffer.has_output


def test_plain_output_follows_the_last_bytes_of_the_outermost_layer():
    buffer = begun()
    buffer.send(b"before ")
    buffer.upgrade(Loud(b"alert "))
    buffer.send(b"never")
    buffer.strip()
    buffer.send(b"after")
    assert buffer.size == len(b"before alert after")
    assert buffer.take() == b"before alert after"
    assert buffer.size == 0
    assert verbs(buffer, b"NOP\n") == [b"NOP"]


def test_layers_without_bytes_add_no_output():
    buffer = begun()
    buffer.upgrade(Loud())
    buffer.strip()
    assert not buffer.has_output


def test_end_in_any_layer_is_the_end():
    buffer = begun()
    inner, outer = Loud(), Loud()
    assert not buffer.at_end
    buffer.upgrade(outer)
    buffer.upgrade(inner, above=1)
    assert not buffer.at_end
    inner.at_end = True
    assert buffer.at_end
