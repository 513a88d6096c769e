"""Requests to nsqlookupds: which nsqds have a topic, and which topics exist.

``Discovery`` and ``TopicDiscovery`` poll for as long as they run; ``lookup_nsqds`` and ``lookup_topics`` send one
request to each nsqlookupd.
"""

from __future__ import annotations

from nsqkit.lookup.discovery import Discovery
from nsqkit.lookup.lookupd_client import lookup_nsqds, lookup_topics
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.poller import LookupdStatus
from nsqkit.lookup.topics import TopicDiscovery

__all__ = ["Discovery", "LookupOptions", "LookupdStatus", "TopicDiscovery", "lookup_nsqds", "lookup_topics"]
