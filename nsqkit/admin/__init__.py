"""HTTP clients for operators: ``NsqdAdmin`` for an nsqd, ``LookupdAdmin`` for an nsqlookupd."""

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
