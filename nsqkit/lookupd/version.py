"""What the nsqlookupd says of its version: on the command line and in its log.

The rule it guards: it is the version of nsqlookupd whose behaviour it has, as nsqlookupd writes it.

How to read it: one function.
"""

from __future__ import annotations

from nsqkit.program import version
from nsqkit.wire.identify import BROKER_VERSION


def version_line() -> str:
    """Return the line, for example ``nsqlookupd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``."""
    return version.version_line("nsqlookupd", BROKER_VERSION)
