"""The pytest plugin: fixtures for tests that need NSQ.

The rule it guards: a suite that does not use the fixtures pays nothing for them. Nothing of nsqkit's is imported
before a test asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqkit.testing.servers import NsqdServer, NsqlookupdServer


@pytest.fixture
def nsqd() -> Iterator[NsqdServer]:
    """A fresh broker on a free port, for one test: asyncio, trio or plain.

    See ``nsqkit.testing.servers.NsqdServer`` for what it has.
    """
    from nsqkit.testing.servers import NsqdServer

    with NsqdServer() as server:
        yield server


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdServer]:
    """A fresh nsqlookupd on a free port, for one test: asyncio, trio or plain.

    See ``nsqkit.testing.servers.NsqlookupdServer`` for what it has.
    """
    from nsqkit.testing.servers import NsqlookupdServer

    with NsqlookupdServer() as server:
        yield server
