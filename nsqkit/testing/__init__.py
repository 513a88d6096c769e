"""A broker for tests: a complete nsqd in the process of the test, with a clock and faults that the test controls.

Installing nsqkit gives pytest the fixtures ``nsqd``, ``nsqlookupd``, ``nsq_topic``, ``nsq_cluster``, ``nsqd_tls``,
``nsqd_mtls``, ``nsqd_auth`` and ``make_nsqd``; ``@pytest.mark.nsqd(msg_timeout="2s")`` sets options, which are nsqd's
flags in snake case. Without pytest, use ``with NsqdServer() as nsqd:``.

    nsqd.tcp_address                        for any client of NSQ
    nsqd.publish("t", b"body")              a message without a client; also inject, messages
    nsqd.topic("t").channel("c").in_flight  the state; also topics, connections, state
    nsqd.wait_idle("t")                     also wait_depth, wait_connected, wait_for
    nsqd.clock.advance(60)                  60 seconds pass now; also advance_to_next
    nsqd.faults.drop(command="FIN")         also delay, reset, error, duplicate, ...; nsqd.disk.full()
    nsqd.journal                            every command and frame
    nsqd.assert_finished("body")            also assert_published, assert_requeued, assert_nothing_lost, ...
    nsqd.restart(keep_data=True)            also stop, start, kill, snapshot, restore, reset
    nsqlookupd.faults.stale("t", "gone:1")  also empty, hide, slow, status, malformed, reset, silence
    nsq_cluster.partition(0)                also kill, stop, restart, heal, wait_registered
    nsqd_auth.auth.grant("secret", ttl=60)  also deny, and faults of its auth server

Methods that wait (``wait_...``, ``clock.advance...``) block, or are awaited in an event loop. All others return at
once. docs/testing.md has a test for each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.testing.auth_server import AuthNsqdServer, AuthServer
    from nsqkit.testing.clock import ControlledClock
    from nsqkit.testing.cluster import Cluster
    from nsqkit.testing.errors import ServerState, Unsupported
    from nsqkit.testing.link.journal import Journal
    from nsqkit.testing.lookup_proxy import LookupProxy
    from nsqkit.testing.script import close, expect, heartbeat, message, reply, reset, wait
    from nsqkit.testing.script_replay import replay
    from nsqkit.testing.scripted import ScriptedNsqd
    from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
    from nsqkit.testing.snapshot import Snapshot
    from nsqkit.testing.tls import Certificates, TLSNsqdServer

_MODULES = {
    "nsqkit.testing.auth_server": ("AuthNsqdServer", "AuthServer"),
    "nsqkit.testing.clock": ("ControlledClock",),
    "nsqkit.testing.cluster": ("Cluster",),
    "nsqkit.testing.errors": ("ServerState", "Unsupported"),
    "nsqkit.testing.link.journal": ("Journal",),
    "nsqkit.testing.lookup_proxy": ("LookupProxy",),
    "nsqkit.testing.script_replay": ("replay",),
    "nsqkit.testing.script": ("close", "expect", "heartbeat", "message", "reply", "reset", "wait"),
    "nsqkit.testing.scripted": ("ScriptedNsqd",),
    "nsqkit.testing.servers": ("NsqdServer", "NsqlookupdServer"),
    "nsqkit.testing.snapshot": ("Snapshot",),
    "nsqkit.testing.tls": ("Certificates", "TLSNsqdServer"),
}

__all__ = [
    "AuthNsqdServer",
    "AuthServer",
    "Certificates",
    "Cluster",
    "ControlledClock",
    "Journal",
    "LookupProxy",
    "NsqdServer",
    "NsqlookupdServer",
    "ScriptedNsqd",
    "ServerState",
    "Snapshot",
    "TLSNsqdServer",
    "Unsupported",
    "close",
    "expect",
    "heartbeat",
    "message",
    "replay",
    "reply",
    "reset",
    "wait",
]


def __getattr__(name: str) -> object:
    # A name is imported when it is first used: pytest loads this package in every suite.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
