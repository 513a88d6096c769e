"""Asking nsqlookupds: which nsqds have a topic, and which topics there are.

``Discovery`` and ``TopicDiscovery`` follow the answers for as long as they run; ``lookup_nsqds`` and ``lookup_topics``
ask once. ``options`` says what can be set, ``merge`` and ``schedule`` decide, ``poller`` does the asking.
"""

from __future__ import annotations

from nsqkit.lookup.discovery import Discovery
from nsqkit.lookup.lookupd_client import lookup_nsqds, lookup_topics
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.poller import LookupdStatus
from nsqkit.lookup.topics import TopicDiscovery

__all__ = [
    "Discovery",
    "LookupOptions",
    "LookupdStatus",
    "TopicDiscovery",
    "lookup_nsqds",
    "lookup_topics",
]
