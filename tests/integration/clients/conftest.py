"""Runs the tests of other clients only in the environment that has those clients: ``tox -e clients``.

Shared fixtures: a broker as a process, and its certificates and auth server.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.clients.processes import Server, run_nsqd
from tests.integration.clients.protection import (
    AuthServer,
    Certificates,
    run_auth_server,
    write_certificates,
)

NEEDED = ["nsq", "ansq", "gnsq", "trustme"]
collect_ignore = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_clients.py", "test_migrating.py"]


@pytest.fixture
def broker(tmp_path: Path) -> Callable[..., AbstractContextManager[Server]]:
    """Run a broker with the given flags."""
    return partial(run_nsqd, tmp_path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with run_auth_server() as server:
        yield server
