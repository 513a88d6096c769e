from __future__ import annotations

from nsqkit.lookupd.version import version_line


def test_it_is_the_version_of_nsqlookupd():
    assert version_line().startswith("nsqlookupd v1.3.0 (built w/go")
