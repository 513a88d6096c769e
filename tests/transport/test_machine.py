"""All sessions have the interface of a machine, so that one loop can drive any of them."""

from __future__ import annotations

import inspect
import re

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.lookup_peer import LookupPeerSession
from nsqkit.broker.core.session.session import Session
from nsqkit.client.session import ClientSession
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.session import ConsumerSession
from nsqkit.lookupd.session import Session as LookupdSession
from nsqkit.producer.session import ProducerSession
from nsqkit.transport import machine
from nsqkit.transport.machine import Machine, Timed

CLIENTS = [ClientSession, ConsumerSession, LookupPeerSession, ProducerSession]
MACHINES = [*CLIENTS, Session, LookupdSession]
TIMED = [*CLIENTS, LookupdSession, Broker, ConsumerCore]  # the broker has the deadlines of its sessions


def methods(cls: type) -> dict[str, list[str]]:
    """Return the methods of a class with the names of their parameters."""
    functions = inspect.getmembers(cls, inspect.isfunction)
    return {name: [*inspect.signature(function).parameters] for name, function in functions if not name.startswith("_")}


@pytest.mark.parametrize(
    ("cls", "protocol"),
    [*((cls, Machine) for cls in MACHINES), *((cls, Timed) for cls in TIMED)],
    ids=lambda cls: f"{cls.__module__}.{cls.__name__}",
)
def test_machine_classes_have_interface(cls, protocol):
    assert methods(protocol).items() <= methods(cls).items()


def test_docstring_lists_all_methods():
    listed = re.findall(r"^\| ``(\w+)\(", machine.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted([*methods(Machine), *methods(Timed)])


@pytest.mark.parametrize("protocol", [Machine, Timed])
def test_methods_are_not_coroutines(protocol):
    functions = [function for _, function in inspect.getmembers(protocol, inspect.isfunction)]
    assert not any(map(inspect.iscoroutinefunction, functions))
