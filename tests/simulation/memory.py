"""The memory of a broker at rest: how many objects it keeps (invariant 23).

All objects that can be reached from the broker are counted, so a leak is found wherever it is. A broker without
messages may keep some for each topic, channel and session, and must not have more after an idle time.
"""

from __future__ import annotations

import gc
import logging
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Final

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.sessions import OutputTaken
from tests.broker.core.disk.disks import MemoryFileStore
from tests.simulation.broken import conclude

SHARED: Final = (
    *(type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Random, logging.Logger, BrokerOptions),
    *(str, bytes, int, float, bool, type(None)),
    MemoryFileStore,
    OutputTaken,
)
"""Kinds of objects that are not counted, and not followed: code, plain values, the disk, and an event that no node of a
world takes."""

OBJECTS_MAX: Final = 100
EACH_MAX: Final = 60
"""Objects of a broker without messages, and those for each topic, channel and session."""


GROWTH_MAX: Final = 8
"""Objects that a broker may make late and once; of a leak there are more, one for each heartbeat of ten intervals."""


def count_objects(root: object) -> int:
    """Return the number of objects that can be reached from ``root``."""
    seen = {id(root)}
    todo = [root]
    for each in todo:
        for referent in gc.get_referents(each):
            if id(referent) not in seen and not isinstance(referent, SHARED):
                seen.add(id(referent))
                todo.append(referent)
    return len(todo)


def count_parts(broker: Broker) -> int:
    """Return the number of topics, channels and sessions."""
    return len(broker.topics) + sum(len(topic.channels) for topic in broker.topics.values()) + len(broker.sessions)


def count_subscribers(broker: Broker) -> int:
    """Return the number of sessions that have subscribed."""
    return sum(session.subscription is not None for session in broker.sessions)


def check_idle(broker: Broker, before: tuple[int, int, int]) -> None:
    """Check the memory of a broker that has been idle, and had so many objects, parts and subscribers ``before``.

    A consumer that uses nsqlookupds may have connected again or subscribed meanwhile.
    """
    count, parts, subscribers = count_objects(broker), count_parts(broker), count_subscribers(broker)
    more = max(parts - before[1], 0) + max(subscribers - before[2], 0)
    most = before[0] + GROWTH_MAX + EACH_MAX * more
    conclude(23, count <= most, f"a broker that was idle has {count} objects, and had {before[0]}")
    most = OBJECTS_MAX + EACH_MAX * parts
    conclude(23, count <= most, f"a broker that was idle has {count} objects, more than {most}")
