"""The version line of a program.

Other programs parse it: the name, ``v`` with the version of NSQ whose behaviour the program has, and ``built w/`` with
a word that begins with ``go`` and has no blanks.
"""

from __future__ import annotations

from nsqkit import __version__


def version_line(name: str, version: str) -> str:
    """Return the line, for example ``nsqd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``.

    Args:
        name: the program's name.
        version: the version of NSQ.
    """
    return f"{name} v{version} (built w/go0.0-nsqkit-{__version__})"
