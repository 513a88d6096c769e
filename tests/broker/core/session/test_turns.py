"""The work of a session in one call, counted and not timed."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable

import pytest

from nsqkit.broker.core.session.frame_buffer import OUTBOX_SIZE_MAX
from nsqkit.broker.core.session.session import ACTIONS, CONSUMERS_PER_WORD, Session
from nsqkit.broker.core.session.turns import SHORT_TURN_WORDS_MAX, TURN_COMMANDS_MAX, TURN_WORDS_MAX
from nsqkit.wire.commands import (
    NOP,
    Command,
    encode_finish,
    encode_identify,
    encode_publish,
    encode_subscribe,
    encode_touch,
)
from nsqkit.wire.frames import OK_FRAME
from tests.pairs import DrivenBroker, DrivenClient

NOBODYS_ID = b"0123456789abcdef"
PUB = encode_publish(b"t", b"m")
SUB = encode_subscribe(b"t", b"c")
IDENTIFY = encode_identify(json.dumps({"feature_negotiation": True, "deflate": True}).encode())


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker()


@pytest.fixture
def word_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The words of each command that was acted on."""
    words: list[int] = []

    def counted(action: Callable[[Session, Command], int | None]) -> Callable[[Session, Command], int | None]:
        def act(session: Session, command: Command) -> int | None:
            words.append(len(command.bodies) or len(command.params) or 1)
            return action(session, command)

        return act

    for verb, action in ACTIONS.items():
        monkeypatch.setitem(ACTIONS, verb, counted(action))
    return words


def turns(client: DrivenClient, word_counts: list[int], driven: DrivenBroker, limit: int = 1_000_000) -> list[int]:
    """Return how many words each of the next turns had, the answers taken in between."""
    found: list[int] = []
    while client.session.has_input and len(found) < limit:
        word_counts.clear()
        client.session.process_input(driven.now_ns)
        found.append(sum(word_counts))
        client.session.data_to_send()
    return found


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def deflating(driven: DrivenBroker) -> DrivenClient:
    client = driven.client()
    client.feed(IDENTIFY)
    client.session.data_to_send()
    return client


@pytest.mark.parametrize("command", [NOP, encode_publish(b"u", b"x"), b"DPUB t 1\n\0\0\0\1x"])
def test_turn_has_a_limit_of_words_for_every_command(driven, word_counts, command):
    client = driven.client()
    client.feed(command * 20_000)
    assert sum(word_counts) <= 2 * TURN_WORDS_MAX
    assert len(word_counts) <= TURN_COMMANDS_MAX
    assert client.session.has_input
    assert max(turns(client, word_counts, driven)) <= 2 * TURN_WORDS_MAX
    assert not client.session.has_input


def test_answers_that_search_all_consumers_count_for_more_words(driven, word_counts):
    client, *_ = [driven.consumer() for _ in range(100 * CONSUMERS_PER_WORD)]
    word_counts.clear()
    client.feed(encode_touch(NOBODYS_ID) * 1000)
    assert max([sum(word_counts), *turns(client, word_counts, driven)]) <= TURN_WORDS_MAX / 100


def test_all_commands_are_processed_in_order(driven):
    client = driven.client()
    client.feed(NOP * 3000, *(encode_publish(b"t", b"%d" % number) * 2 for number in range(3000)))
    assert client.answers() == [b"OK"] * 6000
    frames = driven.topic().queue.take(6000, 1 << 30)
    assert [frame[34:] for frame in frames] == [b"%d" % (number // 2) for number in range(6000)]


def test_processed_buffer_leaves_no_input(driven):
    client = driven.client()
    client.feed(NOP * (TURN_COMMANDS_MAX - 1))
    assert not client.session.has_input
    client.feed(NOP * TURN_COMMANDS_MAX)
    assert not client.session.has_input
    client.feed(NOP * (TURN_COMMANDS_MAX + 1))
    assert client.session.has_input


def test_commands_decompressed_from_64_kb_are_processed_in_turns(driven, word_counts):
    client = deflating(driven)
    client.feed(deflated(NOP * 16_000_000)[: 64 * 1024])
    assert sum(word_counts) <= 2 * TURN_WORDS_MAX
    assert max(turns(client, word_counts, driven, 100)) <= TURN_WORDS_MAX
    assert client.session.has_input


def test_highly_compressed_bodies_are_processed_one_piece_at_a_time(driven, word_counts):
    client = deflating(driven)
    client.feed(deflated(encode_publish(b"t", bytes(1 << 20)) * 64))
    counts = [len(word_counts)]
    while client.session.has_input:
        word_counts.clear()
        client.session.process_input(driven.now_ns)
        counts.append(len(word_counts))
        client.session.data_to_send()
    assert max(counts) <= 1 + TURN_WORDS_MAX // 4096 + 1
    assert driven.topic().message_count == 64


@pytest.mark.parametrize("is_deflated", [False, True])
@pytest.mark.parametrize("command", [encode_touch(NOBODYS_ID), encode_finish(NOBODYS_ID), PUB])
def test_full_outbox_stops_processing_within_a_buffer(driven, command, is_deflated):
    client = deflating(driven) if is_deflated else driven.client()
    data = SUB + command * 150_000
    client.feed(deflated(data) if is_deflated else data)
    client.work()
    assert OUTBOX_SIZE_MAX <= client.session._buffer.size < OUTBOX_SIZE_MAX + 100_000
    assert client.session.outbox_full
    assert not client.session.has_input
    client.session.process_input(driven.now_ns)
    assert client.session._buffer.size < OUTBOX_SIZE_MAX + 100_000
    client.session.data_to_send()
    assert client.session.has_input


def test_publishers_between_turns_do_not_nest_calls(driven):
    client = deflating(driven)
    client.feed(deflated(SUB + encode_touch(NOBODYS_ID) * SHORT_TURN_WORDS_MAX * 3 * sys.getrecursionlimit()))
    for _ in range(2 * sys.getrecursionlimit()):
        driven.publish(b"m", topic=b"other")
        client.session.process_input(driven.now_ns)
        client.session.data_to_send()
    assert client.session.has_input
    assert not client.session.ended


def test_consumer_has_short_turns_after_a_publish(driven, word_counts):
    consumer = driven.consumer(1)
    driven.publish(b"m")
    word_counts.clear()
    consumer.feed(encode_touch(NOBODYS_ID) * 10 * SHORT_TURN_WORDS_MAX)
    assert sum(word_counts) == SHORT_TURN_WORDS_MAX
    assert max(turns(consumer, word_counts, driven)) == SHORT_TURN_WORDS_MAX


def test_command_that_waited_for_an_answer_has_a_turn_of_its_own(driven):
    """It does not run where the answer is received, where an error would not end its connection."""
    driven = DrivenBroker(auth_http_addresses=["127.0.0.1:1"])
    client = driven.client()
    client.feed(b"AUTH\n\0\0\0\1s", NOP)
    session = client.session
    assert (session.outbox_full, session.has_input) == (True, False)
    session.authorize(None)
    assert not session.has_output
    assert (session.outbox_full, session.has_input) == (False, True)
    assert driven.broker.take_sessions() == [session]
    session.process_input(driven.now_ns)
    assert client.answers() == [b"E_AUTH_FAILED AUTH failed"]


def test_run_of_publishes_is_bounded(driven):
    client = driven.client()
    client.feed(PUB * 20_000)
    assert driven.topic().message_count <= 2 * TURN_WORDS_MAX
    assert client.session.data_to_send() == OK_FRAME * driven.topic().message_count
