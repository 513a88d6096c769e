from __future__ import annotations

from nsqkit.broker.version import version_line


def test_it_is_the_version_of_nsqd():
    assert version_line().startswith("nsqd v1.3.0 (built w/go")
