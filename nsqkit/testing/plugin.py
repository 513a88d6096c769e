"""The pytest plugin: fixtures for tests that need NSQ.

nsqkit is imported only when a test uses a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqkit.testing.servers import NsqdServer, NsqlookupdServer


@pytest.fixture
def nsqd() -> Iterator[NsqdServer]:
    """A new broker on a free port, for one test: asyncio, trio or plain (``nsqkit.testing.servers.NsqdServer``)."""
    from nsqkit.testing.servers import NsqdServer

    with NsqdServer() as server:
        yield server


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdServer]:
    """A new nsqlookupd on a free port, for one test (``nsqkit.testing.servers.NsqlookupdServer``)."""
    from nsqkit.testing.servers import NsqlookupdServer

    with NsqlookupdServer() as server:
        yield server
