from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.items import Connection, Direction, Item
from nsqkit.wire.commands import NOP, encode_publish

CLIENT = Connection("127.0.0.1:5")
PUB = Item("PUB", encode_publish(b"t", b"body"))


def hits(seed: int, **limits: Any) -> list[bool]:
    fault = Faults(seed).drop(command="PUB", **limits)
    return [fault.applies(Direction.TO_BROKER, PUB, CLIENT) for _ in range(1000)]


def test_times_and_after_count_selected_items() -> None:
    faults = Faults()
    fault = faults.drop(command="PUB", after=1, times=2)
    items = [PUB, Item("NOP", NOP), PUB, PUB, PUB]
    assert [fault.applies(Direction.TO_BROKER, item, CLIENT) for item in items] == [False, False, True, True, False]
    assert fault.count == 2
    assert not faults.active


def test_same_seed_gives_the_same_result() -> None:
    assert hits(7, probability=0.5) == hits(7, probability=0.5) != hits(8, probability=0.5)
    assert 400 < sum(hits(7, probability=0.5)) < 600
    assert sum(hits(7, probability=0.5, times=3)) == 3


def test_fault_is_removed_at_the_end_of_with() -> None:
    faults = Faults()
    with faults.refuse() as fault:
        assert faults.refuses
    assert not faults.refuses
    assert fault.is_removed
    fault.remove()


def test_clear_removes_all_also_those_that_have_applied_often_enough() -> None:
    faults = Faults()
    spent, fault = faults.close_on_accept(client="127.0.0.1:6", times=1), faults.silence()
    assert spent.applies_to_new(Connection("127.0.0.1:6"))
    faults.clear()
    assert fault.is_removed
    assert spent.is_removed
    assert not faults.active


def test_repr_has_the_rule_and_the_seed() -> None:
    assert "seed=42" in repr(Faults(42).drop(command="FIN"))
    assert "command='FIN'" in repr(Faults(42).drop(command="FIN"))


@pytest.mark.parametrize(
    ("name", "arguments", "options", "words"),
    [
        ("delay", (0,), {}, "seconds is 0"),
        ("delay", ("1s",), {}, "seconds is '1s'"),
        ("redeliver", (-1,), {}, "seconds is -1"),
        ("bandwidth", (0,), {}, "bytes_per_second is 0"),
        ("slices", (0.5,), {}, "size is 0.5"),
        ("close_at", (-1,), {}, "byte is -1"),
        ("close_at", (0,), {"frame": 0}, "frame is 0"),
        ("close_at", (0,), {"times": 2}, "times is not allowed"),
        ("garbage", (b"",), {}, "data is b''"),
        ("wrong_length", (1 << 31,), {}, "length is 2147483648"),
        ("wrong_type", (None,), {}, "frame_type is None"),
        ("oversize", (1 << 30,), {}, "size is 1073741824"),
        ("error", ("E_BAD",), {"command": "PUB"}, "code is 'E_BAD'; allowed are E_INVALID"),
        ("error", ("E_INVALID",), {"command": "OK"}, "error never applies to OK"),
        ("half_open", ("up",), {}, "direction is 'up'"),
        ("drop", (), {"comand": "PUB"}, "did you mean 'command'"),
        ("silence", (), {"command": "PUB"}, "silence applies to new connections; allowed is no command"),
    ],
    ids=str,
)
def test_wrong_argument_is_refused(name: str, arguments: tuple[Any, ...], options: dict[str, Any], words: str) -> None:
    faults = Faults()
    with pytest.raises(OptionError, match=words):
        getattr(faults, name)(*arguments, **options)
    assert not faults.active


def test_length_of_time_may_be_a_timedelta() -> None:
    assert "delay_ns=1500000" in repr(Faults().delay(timedelta(milliseconds=1.5)))


def test_rule_that_another_one_contradicts_is_refused() -> None:
    faults = Faults()
    with faults.refuse(), pytest.raises(OptionError, match="refuse would never apply: refuse already applies"):
        faults.refuse()
    faults.refuse()
    faults.error("E_PUB_FAILED", command="PUB", times=1)
    faults.drop(command="PUB")  # from the second one on
    with pytest.raises(OptionError, match="drop_answer would never apply: drop already applies"):
        faults.drop_answer(command="PUB")
    faults.delay(1, command="PUB")
    with pytest.raises(OptionError, match="delay would never apply"):
        faults.delay(2, command="PUB", topic="t")
    faults.slices(1)
    faults.half_open()
    faults.silence()
    with pytest.raises(OptionError, match="close_on_accept would never apply: silence already applies"):
        faults.close_on_accept()
