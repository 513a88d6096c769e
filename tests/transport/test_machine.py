"""The verbs are one protocol for both ends of a connection; these tests hold its members against the protocol."""

from __future__ import annotations

import inspect
import re

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.session.session import Session
from nsqkit.client.session import ClientSession
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.session import ConsumerSession
from nsqkit.producer.session import ProducerSession
from nsqkit.transport import machine
from nsqkit.transport.machine import Machine, Timed

MACHINES = [Session, ClientSession, ConsumerSession, ProducerSession]
TIMED = [Broker, ClientSession, ConsumerSession, ConsumerCore, ProducerSession]


def verbs(cls: type) -> dict[str, list[str]]:
    """Return the methods of a class with the names of their arguments."""
    functions = inspect.getmembers(cls, inspect.isfunction)
    return {
        name: [*inspect.signature(function).parameters]
        for name, function in functions
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("cls", "protocol"), [*((cls, Machine) for cls in MACHINES), *((cls, Timed) for cls in TIMED)]
)
def test_machine_classes_have_interface(cls, protocol):
    assert verbs(protocol).items() <= verbs(cls).items()


def test_docstring_lists_all_methods():
    listed = re.findall(r"^\| ``(\w+)\(", machine.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted([*verbs(Machine), *verbs(Timed)])


@pytest.mark.parametrize("protocol", [Machine, Timed])
def test_methods_are_not_coroutines(protocol):
    functions = [function for _, function in inspect.getmembers(protocol, inspect.isfunction)]
    assert not any(map(inspect.iscoroutinefunction, functions))
