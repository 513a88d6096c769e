from __future__ import annotations

from typing import Any

import pytest

from nsqkit.errors import FinishFailed, OptionError, PublishFailed
from nsqkit.testing.link import actions
from nsqkit.testing.link.items import FRAMES, Connection, Direction, Item
from nsqkit.testing.link.rules import Rule, has_answer, is_answer
from nsqkit.wire.commands import NOP, encode_finish, encode_publish, encode_subscribe
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_error
from nsqkit.wire.messages import encode_message

PUB = Item("PUB", encode_publish(b"t", b"body"))
SUB = Item("SUB", encode_subscribe(b"t", b"c"))
FIN = Item("FIN", encode_finish(b"0" * 16))
MESSAGE = Item("MESSAGE", encode_message(1, 1, b"0" * 16, b""))
OK = Item("OK", OK_FRAME)
CLIENT = Connection("127.0.0.1:5", client_id="worker", topic="t", channel="c")


def rule(action: actions.Action | None = None, **selector: Any) -> Rule:
    return Rule(fault="drop", action=action or actions.Drop(), **selector)


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({"command": "PUBB"}, "did you mean 'PUB'"),
        ({"command": "MESAGE"}, "did you mean 'MESSAGE'"),
        ({"command": "?"}, "allowed are None, MAGIC"),
        ({"direction": "up"}, "'to_broker' and 'to_client'"),
        ({"direction": "to_client", "command": "PUB"}, "PUB goes to_broker"),
        ({"direction": "to_broker", "command": "OK"}, "OK goes to_client"),
        ({"topic": "t", "command": "NOP"}, "NOP has no topic"),
        ({"topic": "t", "command": "HEARTBEAT"}, "HEARTBEAT has no topic"),
        ({"channel": "c", "command": "PUB"}, "PUB has no channel"),
        ({"topic": ""}, "topic is ''"),
        ({"client": 5}, "client is 5"),
        ({"times": 0}, "times is 0; allowed is None or a number from 1"),
        ({"times": True}, "times is True"),
        ({"after": -1}, "after is -1"),
        ({"after": None}, "after is None"),
        ({"probability": 0}, "probability is 0"),
        ({"probability": 1.5}, "probability is 1.5"),
        ({"probability": float("nan")}, "probability is nan"),
        ({"action": actions.DropAnswer(), "command": "FIN"}, "FIN, which has no answer"),
        ({"action": actions.Duplicate(), "command": "OK"}, "never applies to OK"),
        ({"action": actions.Duplicate(), "direction": "to_broker"}, "MESSAGE goes to_client"),
        ({"action": actions.WrongType(1), "command": "PUB"}, "never applies to PUB"),
        ({"action": actions.DropAnswer(), "command": "PUB", "channel": "c"}, "PUB has no channel"),
    ],
    ids=str,
)
def test_rule_that_can_never_apply_is_refused(selector: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match="^.*" + words.replace("?", r"\?")):
        rule(**selector)


@pytest.mark.parametrize(
    ("selector", "item", "selected"),
    [
        ({}, PUB, True),
        ({"direction": "to_client"}, PUB, False),
        ({"direction": "to_client"}, OK, True),
        ({"command": "PUB"}, PUB, True),
        ({"command": "MPUB"}, PUB, False),
        ({"topic": "t"}, PUB, True),
        ({"topic": "u"}, PUB, False),
        ({"topic": "t"}, MESSAGE, True),
        ({"topic": "u"}, MESSAGE, False),
        ({"topic": "t"}, OK, False),
        ({"topic": "t", "channel": "c"}, SUB, True),
        ({"channel": "d"}, SUB, False),
        ({"channel": "c"}, FIN, True),
        ({"client": "worker"}, PUB, True),
        ({"client": "127.0.0.1:5"}, PUB, True),
        ({"client": "web"}, PUB, False),
        ({"action": actions.Duplicate()}, OK, False),
    ],
    ids=str,
)
def test_items_are_selected(selector: dict[str, Any], item: Item, selected: bool) -> None:
    direction = Direction.TO_CLIENT if item.name in FRAMES else Direction.TO_BROKER
    assert rule(**selector).selects(direction, item, CLIENT) is selected


def test_incomplete_command_is_no_error() -> None:
    assert not rule(topic="t").selects(Direction.TO_BROKER, Item("PUB", b"PUB\n"), CLIENT)
    assert not rule(channel="c").selects(Direction.TO_BROKER, Item("SUB", b"SUB t\r\n"), CLIENT)


@pytest.mark.parametrize(
    ("first", "second", "covers"),
    [
        ({}, {}, True),
        ({}, {"command": "PUB"}, True),
        ({"command": "PUB"}, {}, False),
        ({"command": "PUB"}, {"command": "PUB", "topic": "t"}, True),
        ({"command": "PUB"}, {"command": "SUB"}, False),
        ({"direction": "to_broker"}, {"command": "PUB"}, True),
        ({"command": "PUB"}, {"command": "PUB", "action": actions.DropAnswer()}, True),
        ({}, {"action": actions.Delay(1)}, False),
        ({"action": actions.Duplicate()}, {"command": "OK"}, False),
        ({"action": actions.Duplicate()}, {"command": "MESSAGE"}, True),
    ],
    ids=str,
)
def test_rule_covers_another(first: dict[str, Any], second: dict[str, Any], covers: bool) -> None:
    assert rule(**first).covers(rule(**second)) is covers


def test_answers_are_distinguished_from_other_frames() -> None:
    assert is_answer(OK)
    assert is_answer(Item("ERROR", encode_error(PublishFailed("PUB failed"))))
    assert not is_answer(Item("ERROR", encode_error(FinishFailed("FIN failed"))))
    assert not is_answer(Item("HEARTBEAT", HEARTBEAT_FRAME))
    assert not is_answer(MESSAGE)
    assert has_answer(PUB)
    assert not has_answer(FIN)
    assert not has_answer(Item("NOP", NOP))
