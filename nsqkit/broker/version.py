"""What the broker says of its version: on the command line, in its log and at the head of ``/stats``.

The rule it guards: programs parse this line. ``nsqd v`` is followed by the version of nsqd whose behaviour the
broker has, and ``built w/`` by a word that begins with ``go`` and has no blanks.

How to read it: one function.
"""

from __future__ import annotations

from nsqkit import __version__
from nsqkit.wire.identify import BROKER_VERSION


def version_line() -> str:
    """Return the line, for example ``nsqd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``."""
    return f"nsqd v{BROKER_VERSION} (built w/go0.0-nsqkit-{__version__})"
