"""What the broker says of its version: on the command line, in its log and at the head of ``/stats``.

The rule it guards: it is the version of nsqd whose behaviour the broker has, as nsqd writes it.

How to read it: one function.
"""

from __future__ import annotations

from nsqkit.program import version
from nsqkit.wire.identify import BROKER_VERSION


def version_line() -> str:
    """Return the line, for example ``nsqd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``."""
    return version.version_line("nsqd", BROKER_VERSION)
