"""The servers that the tests of this folder run against; each test runs once with each kind of server.

An nsqd or nsqlookupd must behave the same for clients in each kind. The kinds are: nsqkit in this process, nsqkit as
processes, and, if ``--nsqd-binary`` or ``--nsqlookupd-binary`` names a program, that program. If only one of the two is
named, nsqkit's process is its companion.

``nsqd`` and ``nsqlookupd`` run for all tests of a module, so each test uses its own topic. ``start_nsqd`` is for tests
that need other flags or stop the server. The output of a server is printed after each test, and pytest shows it for
failed tests.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.certificates import Files, write_files
from tests.integration.anywhere.servers import BINARY, IN_PROCESS, PROCESS, Kind, Server, StartNsqd

MAX_MSG_SIZE = 10_000
"""Message size that ``nsqd`` accepts, in bytes."""

OPTIONS = ("--nsqd-binary", "--nsqlookupd-binary")

Kinds: TypeAlias = tuple[Kind, Kind]
"""Of nsqd and of nsqlookupd."""

_topics = (f"topic_{number}" for number in itertools.count())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kinds" in metafunc.fixturenames:
        kinds = [(Kind(IN_PROCESS), Kind(IN_PROCESS)), (Kind(PROCESS), Kind(PROCESS))]
        nsqd, nsqlookupd = (_binary(metafunc.config, option) for option in OPTIONS)
        wants_nsqlookupd = "nsqlookupd" in metafunc.fixturenames
        if nsqd or (nsqlookupd and wants_nsqlookupd):
            kinds.append((nsqd or Kind(PROCESS), nsqlookupd or Kind(PROCESS)))
        ids = [kind.name for kind, _ in kinds[:2]] + [BINARY] * (len(kinds) - 2)
        metafunc.parametrize("kinds", kinds, ids=ids, scope="module")


def _binary(config: pytest.Config, option: str) -> Kind | None:
    name = config.getoption(option)
    if not name:
        return None
    if (path := shutil.which(name)) is None:
        raise pytest.UsageError(f"{option} is {name!r}; allowed is a program")
    return Kind(BINARY, path)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return next(_topics)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def common_nsqd(kinds: Kinds, certificates: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = [
        f"--tls-cert={certificates.certificate}",
        f"--tls-key={certificates.key}",
        f"--max-msg-size={MAX_MSG_SIZE}",
    ]
    server = kinds[0].nsqd(tmp_path_factory.mktemp("nsqd"), *flags)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nsqd(common_nsqd: Server) -> Iterator[Server]:
    """An nsqd that offers TLS and compression, requires neither, and accepts messages of up to MAX_MSG_SIZE."""
    yield common_nsqd
    sys.stderr.write(common_nsqd.output())


@pytest.fixture
def start_nsqd(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNsqd]:
    """Start an nsqd with flags; it stops after the test."""
    with ExitStack() as stack:

        def start(*flags: str) -> Server:
            folder: Path = tmp_path_factory.mktemp("nsqd")
            server = kinds[0].nsqd(folder, *flags)
            stack.callback(lambda: sys.stderr.write(server.output()))
            server.start()
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture(scope="module")
def common_nsqlookupd(kinds: Kinds) -> Iterator[Server]:
    server = kinds[1].nsqlookupd()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nsqlookupd(common_nsqlookupd: Server) -> Iterator[Server]:
    yield common_nsqlookupd
    sys.stderr.write(common_nsqlookupd.output())
