"""What operators do over HTTP, from Python: ``NsqdAdmin`` for an nsqd, ``LookupdAdmin`` for an nsqlookupd.

Read ``nsqd`` and ``lookupd`` for the routes, ``stats`` for what nsqd tells of itself.
"""

from __future__ import annotations

from nsqkit.admin.lookupd import Lookup, LookupdAdmin
from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.admin.stats import (
    ChannelStats,
    ClientStats,
    Latency,
    MemoryStats,
    NsqdInfo,
    NsqdStats,
    Percentile,
    PubCount,
    TopicStats,
)
from nsqkit.lookup.responses import RegisteredNode
from nsqkit.wire.lookup import Node

__all__ = [
    "ChannelStats",
    "ClientStats",
    "Latency",
    "Lookup",
    "LookupdAdmin",
    "MemoryStats",
    "Node",
    "NsqdAdmin",
    "NsqdInfo",
    "NsqdStats",
    "Percentile",
    "PubCount",
    "RegisteredNode",
    "TopicStats",
]
