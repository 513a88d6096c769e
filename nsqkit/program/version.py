"""What a program says of its version.

The rule it guards: programs parse this line. The name and ``v`` are followed by the version of NSQ whose behaviour the
program has, and ``built w/`` by a word that begins with ``go`` and has no blanks.

How to read it: one function.
"""

from __future__ import annotations

from nsqkit import __version__


def version_line(name: str, version: str) -> str:
    """Return the line, for example ``nsqd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``.

    Args:
        name: the program's.
        version: that of NSQ.
    """
    return f"{name} v{version} (built w/go0.0-nsqkit-{__version__})"
