"""The version that the nsqlookupd reports: that of the nsqlookupd whose behaviour it has."""

from __future__ import annotations

from nsqkit.program import version
from nsqkit.wire.identify import BROKER_VERSION


def version_line() -> str:
    """Return the line, for example ``nsqlookupd v1.3.0 (built w/go0.0-nsqkit-0.1.0)``."""
    return version.version_line("nsqlookupd", BROKER_VERSION)
