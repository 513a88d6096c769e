"""The version line of a program.

Other programs parse it: the name, ``v`` with the version of NSQ whose behaviour the program has, and ``built w/`` with
a word that begins with ``go`` and has no blanks.
"""

from __future__ import annotations

from nsqkit import __version__
from nsqkit.wire.identify import BROKER_VERSION


def version_line(name: str) -> str:
    """Return the line of the program ``name``, for example ``nsqd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``."""
    return f"{name} v{BROKER_VERSION} (built w/go0.0-nsqkit-{__version__})"
