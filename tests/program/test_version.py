from __future__ import annotations

import re

from nsqkit import __version__
from nsqkit.program.version import version_line


def test_the_version_line_can_be_parsed_as_nsqds():
    line = version_line("nsqd")
    match = re.search(r"nsqd v(\S+)", line)
    assert match is not None
    assert match[1] == "1.3.0"
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/go[0-9.]+[a-z0-9.-]*\)", line)
    assert __version__ in line
