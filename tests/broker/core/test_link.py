from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.link import OUTBOX_SIZE_MAX, Link
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.compression import PIECE_SIZE_MAX, Deflate


def make_link() -> Link:
    return Link(CommandDecoder(lambda verb, params: None, max_msg_size=1000, max_body_size=1000))


def begun() -> Link:
    link = make_link()
    assert verbs(link, b"  V2") == []
    return link


def verbs(link: Link, *data: bytes) -> list[bytes]:
    """Return the verbs of all commands that ``link`` has, after it was given ``data``."""
    for piece in data:
        link.receive(piece)
    found = []
    while (commands := link.next_commands()) is not None:
        found += [command.verb for command in commands]
    return found


def test_frames_go_out_in_order_joined_once():
    link = begun()
    assert not link.has_output
    link.send(b"a")
    link.send_all([b"b", b"c"])
    assert link.has_output
    assert link.size == 3
    assert link.take() == b"abc"
    assert link.take() == b""
    assert link.size == 0
    assert not link.has_output


def test_what_is_held_waits_and_so_does_what_comes_after_it():
    link = begun()
    link.send(b"a")
    link.hold(1)
    link.send(b"b")
    link.hold(1)
    link.send(b"c")
    link.hold(2)
    link.send(b"d")
    assert link.take() == b"a"
    assert not link.has_output
    assert link.is_holding
    link.release(1)
    assert link.take() == b"bc"
    link.send(b"e")
    link.release(2)
    assert not link.is_holding
    link.send(b"f")
    assert link.take() == b"def"
    assert link.size == 0


def test_it_is_full_until_what_waits_has_been_taken():
    link = begun()
    link.send(b"x" * OUTBOX_SIZE_MAX)
    assert link.is_full
    link.take()
    assert not link.is_full


def test_commands_wait_with_all_that_comes_after_them():
    link = begun()
    link.receive(b"NOP\nRDY 1\nCLS\n")
    commands = link.next_commands()
    assert commands is not None
    assert next(commands).verb == b"NOP"
    link.wait(next(commands), commands)
    assert link.waits
    link.receive(b"RDY 2\nRD")
    link.receive(b"Y 3\n")
    again = link.next_commands()
    assert again is not None
    link.wait(next(again), again)
    assert verbs(link, b"NOP\n") == [b"RDY", b"CLS", b"RDY", b"RDY", b"NOP"]
    assert not link.has_unread


def test_what_was_begun_comes_before_what_came_since():
    link = begun()
    link.receive(b"NOP\nCLS\nRDY 1\n")
    for verb in (b"NOP", b"CLS", b"RDY"):
        commands = link.next_commands()
        assert commands is not None
        assert next(commands).verb == verb
        assert link.is_drained == (verb == b"RDY")
        link.keep(commands)
        assert link.has_unread
        link.receive(b"SUB a b\n")
    assert verbs(link) == [b"SUB"] * 3


def test_how_often_it_was_interrupted_costs_nothing():
    link = begun()
    count = 3 * sys.getrecursionlimit()
    link.receive(b"NOP\n" * count)
    for _ in range(count):
        commands = link.next_commands()
        assert commands is not None
        link.wait(next(commands), commands)
        link.receive(b"CLS\n")
    assert verbs(link) == [b"NOP"] * count + [b"CLS"] * count


@pytest.mark.parametrize("layers", [0, 1, 2])
@given(st.data())
def test_an_upgrade_takes_effect_between_two_bytes(layers, data):
    """One side sends a command before each layer and one after the last; they arrive however the bytes are cut."""
    theirs = [Deflate(6) for _ in range(layers)]
    sent = b"  V2"
    for depth in range(layers + 1):
        piece = b"RDY %d\n" % depth
        for layer in reversed(theirs[:depth]):
            piece = layer.encode(piece)
        sent += piece
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    link = make_link()
    seen, answers = [], b""

    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        link.receive(sent[start:end])
        while (commands := link.next_commands()) is not None:
            for command in commands:
                seen.append(command.params[0])
                link.send(b"<" + command.params[0])
                if len(seen) <= layers:
                    link.upgrade(Deflate(6), above=len(seen) - 1)
                    link.send(b">")
        answers += link.take()
    assert seen == [b"%d" % depth for depth in range(layers + 1)]
    for depth in range(layers):
        plain = b"<%d" % depth if not depth else b"><%d" % depth
        assert answers.startswith(plain)
        answers = b"".join(theirs[depth].decode(answers[len(plain) :]))
    assert answers == (b"><%d" if layers else b"<%d") % layers


class Loud:
    """A layer that has something of its own to say, and turns bytes around."""

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


def test_what_follows_two_upgrades_at_once_goes_through_both():
    link = begun()
    inner, outer = Deflate(6), Loud()
    link.receive(b"NOP\n" + outer.encode(Deflate(6).encode(b"CLS\n")))
    commands = link.next_commands()
    assert commands is not None
    assert next(commands).verb == b"NOP"
    link.upgrade(outer)
    link.send(b"ok")
    link.upgrade(inner, above=1)
    assert list(commands) == []
    assert verbs(link) == [b"CLS"]
    assert link.take() == b"OK"


def test_what_followed_an_upgrade_goes_before_what_came_while_it_waited():
    link = begun()
    link.receive(b"NOP\nrdy 1\n")
    commands = link.next_commands()
    assert commands is not None
    link.wait(next(commands), commands)
    link.receive(b"rdy 2\n")
    seen = []
    while (commands := link.next_commands()) is not None:
        for command in commands:
            seen.append((command.verb, *command.params))
            if command.verb == b"NOP":
                link.upgrade(Loud())
    assert seen == [(b"NOP",), (b"RDY", b"1"), (b"RDY", b"2")]


def test_upgrades_inside_each_other_do_not_nest():
    count = 2 * sys.getrecursionlimit()
    sent = b""
    for _ in range(count):
        sent = b"NOP\n" + sent.swapcase()
    link = begun()
    link.receive(sent)
    seen = 0
    while (commands := link.next_commands()) is not None:
        for _ in commands:
            seen += 1
            link.upgrade(Loud())
    assert seen == count


def test_what_layers_decode_comes_a_piece_at_a_time():
    link = begun()
    link.upgrade(Deflate(6))
    link.receive(Deflate(6).encode(b"NOP\n" * PIECE_SIZE_MAX))
    counts = []
    while (commands := link.next_commands()) is not None:
        counts.append(len(list(commands)))
    assert counts == [PIECE_SIZE_MAX // 4] * 4


def test_what_a_layer_has_to_say_itself_is_sent_without_a_frame():
    link = begun()
    link.upgrade(Loud(b"hello"))
    assert link.has_output
    assert link.take() == b"hello"
    assert not link.has_output


def test_without_its_layers_it_goes_on_after_what_the_outermost_has_to_say():
    link = begun()
    link.send(b"before ")
    link.upgrade(Loud(b"alert "))
    link.send(b"never")
    link.strip()
    link.send(b"after")
    assert link.size == len(b"before alert after")
    assert link.take() == b"before alert after"
    assert link.size == 0
    assert verbs(link, b"NOP\n") == [b"NOP"]


def test_without_layers_that_have_nothing_to_say_there_is_nothing_to_send():
    link = begun()
    link.upgrade(Loud())
    link.strip()
    assert not link.has_output


def test_the_end_in_any_layer_is_the_end():
    link = begun()
    inner, outer = Loud(), Loud()
    assert not link.at_end
    link.upgrade(outer)
    link.upgrade(inner, above=1)
    assert not link.at_end
    inner.at_end = True
    assert link.at_end
