"""The options of an nsqlookupd: every flag of nsqlookupd 1.3.0, with its default.

The rule it guards: a ``LookupdOptions`` that exists is one that an nsqlookupd can run with. What is wrong with a value
is said when the object is made, in one sentence that names the option, the value and what is allowed.

How to read it: one field per flag, in nsqlookupd's order and with its defaults (nsqlookupd, options.go). ``OPTIONS``
tells of each field what is not its value, and drives the command line and the configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nsqkit.options.fields import choice, duration, string
from nsqkit.options.option import Option
from nsqkit.program.log import LEVELS

__all__ = ["OPTIONS", "LookupdOptions"]

_SECOND: Final = 1_000_000_000


@attrs.frozen(kw_only=True)
class LookupdOptions:
    """How an nsqlookupd behaves.

    Raises:
        OptionError: a value is of the wrong type or out of range.
    """

    log_level: str = choice("log-level", "info", "least level that is logged", LEVELS)
    log_prefix: str = string("log-prefix", "[nsqlookupd] ", "how every line of the log begins")
    tcp_address: str = string("tcp-address", "0.0.0.0:4160", "where to listen for nsqds: HOST:PORT")
    http_address: str = string("http-address", "0.0.0.0:4161", "where to listen for HTTP clients: HOST:PORT")
    # nsqlookupd takes the name of its host. A pure module cannot ask for that name; who knows it passes it.
    broadcast_address: str = string(
        "broadcast-address", "localhost", "address that nsqds are told (default: the host's name)"
    )
    inactive_producer_timeout_ns: int = duration(
        "inactive-producer-timeout", 300 * _SECOND, "time since its last ping for which an nsqd is told of"
    )
    tombstone_lifetime_ns: int = duration(
        "tombstone-lifetime", 45 * _SECOND, "time for which a tombstone hides an nsqd that stays registered"
    )


OPTIONS: Final[Mapping[str, Option]] = {
    field.name: field.metadata[Option] for field in attrs.fields(LookupdOptions)
}
"""Every option by the name of its field, in nsqlookupd's order."""
