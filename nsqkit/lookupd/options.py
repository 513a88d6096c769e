"""The options of an nsqlookupd: every flag of nsqlookupd 1.3.0, in its order, with its defaults (its options.go).

Values are checked when the object is created; an error names the option, the value and the allowed values. ``OPTIONS``
has the description of each field for the command line and the configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nsqkit.options.fields import choice, duration, flags_of, string
from nsqkit.options.option import Option
from nsqkit.program.log import LEVELS

_SECOND: Final = 1_000_000_000


@attrs.frozen(kw_only=True)
class LookupdOptions:
    """The options of an nsqlookupd; a value of the wrong type or out of range raises OptionError."""

    log_level: str = choice("info", "least level that is logged", LEVELS)
    log_prefix: str = string("[nsqlookupd] ", "how every line of the log begins")
    tcp_address: str = string("0.0.0.0:4160", "where to listen for nsqds: HOST:PORT")
    http_address: str = string("0.0.0.0:4161", "where to listen for HTTP clients: HOST:PORT")
    # The command passes the host's name, as in nsqlookupd; this module does no I/O.
    broadcast_address: str = string("localhost", "address given to nsqds (default: the host's name)")
    inactive_producer_timeout_ns: int = duration(
        300 * _SECOND, "time after its last ping until an nsqd is no longer listed"
    )
    tombstone_lifetime_ns: int = duration(45 * _SECOND, "time for which a tombstone hides an nsqd")


OPTIONS: Final[Mapping[str, Option]] = flags_of(LookupdOptions)
"""Every option by the name of its field, in nsqlookupd's order."""
