"""The words of commands, and the table of states; test_session.py tests refusals through a session."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.session.command_rules import (
    PARAMS_MIN,
    TRANSITIONS,
    CommandRules,
    State,
    check_words,
    parse_word,
    text,
)
from nsqkit.errors import BrokerError, InvalidCommand

ID = b"0123456789abcdef"
HOUR_NS = 3600 * 10**9


def refusal(line: bytes) -> str:
    verb, *params = line.split(b" ")
    with pytest.raises(BrokerError) as refused:
        check_words(verb, params, max_req_timeout_ns=HOUR_NS)
    return str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        *(b"PUB t", b"MPUB t more words", b"DPUB t 3600000", b"DPUB t ", b"SUB t c", b"RDY x"),
        *(b"FIN " + ID, b"REQ " + ID + b" x", b"TOUCH " + ID, b"AUTH", b"NOP a b", b"IDENTIFY a"),
    ],
)
def test_words_that_are_valid_or_are_checked_later_pass(line):
    verb, *params = line.split(b" ")
    check_words(verb, params, max_req_timeout_ns=HOUR_NS)


def test_moves_follow_the_table():
    rules = CommandRules(max_req_timeout_ns=HOUR_NS, lacks_tls=False)
    states = []
    for event in ("IDENTIFY", "SUB", "CLS", "end"):
        rules.move(event)
        states.append(rules.state)
    assert states == [State.IDENTIFIED, State.SUBSCRIBED, State.CLOSING, State.ENDED]
    assert [state.number for state in State] == [0, 0, 3, 4, 1]  # nsqd's


def test_every_state_can_end_and_is_reachable():
    reachable = {State.INIT, *(after for events in TRANSITIONS.values() for after in events.values())}
    assert reachable == set(State) == TRANSITIONS.keys()
    assert all("end" in events for state, events in TRANSITIONS.items() if state is not State.ENDED)


def test_rules_follow_the_state():
    rules = CommandRules(max_req_timeout_ns=HOUR_NS, lacks_tls=False)
    params = [b"t", b"c"]
    rules.check(b"SUB", params)
    rules.check(b"SUB", params)
    for event in ("SUB", "CLS"):
        rules.move(event)
        with pytest.raises(InvalidCommand, match="cannot SUB in current state"):
            rules.check(b"SUB", params)


@pytest.mark.parametrize("verb", PARAMS_MIN)
def test_too_few_words_are_refused(verb):
    least, words = PARAMS_MIN[verb]
    for count in range(least):
        line = b" ".join([verb, *[b"t"] * count])
        assert refusal(line) == f"E_INVALID {verb.decode()} insufficient number of {words}"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"PUB a$b", 'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
        (b"MPUB a$b", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
        (b"DPUB a$b x", 'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
        (b"DPUB t x", "E_INVALID DPUB could not parse timeout x"),
        (b"DPUB t 3600001", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (
            b"DPUB t 18446744073709551615",
            "E_INVALID DPUB timeout 18446744073709551615 out of range 0-3600000",
        ),
        (b"SUB a$b c$d", 'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
        (b"SUB t c$d", 'E_BAD_CHANNEL SUB channel name "c$d" is not valid'),
        (b"FIN 123", "E_INVALID invalid message ID"),
        (b"REQ 123 x", "E_INVALID invalid message ID"),
        (b"TOUCH " + ID + b"0", "E_INVALID invalid message ID"),
        (b"AUTH secret", "E_INVALID AUTH invalid number of parameters"),
    ],
)
def test_invalid_words_are_refused(line, answer):
    assert refusal(line) == answer


def test_number_is_parsed_or_refused_with_the_word_in_the_text():
    assert parse_word(b"12", "what") == 12
    with pytest.raises(InvalidCommand, match=r"E_INVALID what 1\.5"):
        parse_word(b"1.5", "what")


def test_bytes_that_are_not_utf8_survive():
    assert text(b"\xff").encode("utf-8", "surrogateescape") == b"\xff"
