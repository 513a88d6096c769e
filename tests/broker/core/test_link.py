from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.link import OUTBOX_SIZE_MAX, Link
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.compression import Deflate


def make_link() -> Link:
    return Link(CommandDecoder(lambda verb, params: None, max_msg_size=1000, max_body_size=1000))


def begun() -> Link:
    link = make_link()
    assert list(link.receive(b"  V2")) == []
    return link


def verbs(commands):
    return [command.verb for command in commands]


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
    commands = link.receive(b"NOP\nRDY 1\nCLS\n")
    assert next(commands).verb == b"NOP"
    link.wait(next(commands), commands)
    assert link.waits
    assert list(link.receive(b"RDY 2\nRD")) == []
    assert list(link.receive(b"Y 3\n")) == []
    again = link.go_on()
    assert not link.waits
    link.wait(next(again), again)
    assert list(link.receive(b"NOP\n")) == []
    assert verbs(link.go_on()) == [b"RDY", b"CLS", b"RDY", b"RDY", b"NOP"]


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

    def act(commands) -> None:
        for command in commands:
            seen.append(command.params[0])
            link.send(b"<" + command.params[0])
            if len(seen) <= layers:
                link.upgrade(Deflate(6), above=len(seen) - 1)
                link.send(b">")
        if link.rest:
            act(link.receive_rest())

    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        act(link.receive(sent[start:end]))
        answers += link.take()
    assert seen == [b"%d" % depth for depth in range(layers + 1)]
    for depth in range(layers):
        plain = b"<%d" % depth if not depth else b"><%d" % depth
        assert answers.startswith(plain)
        answers = b"".join(theirs[depth].decode(answers[len(plain) :]))
    assert answers == (b"><%d" if layers else b"<%d") % layers
