"""The pytest plugin: fixtures for tests that need NSQ.

nsqkit is imported only when a test uses a fixture.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from nsqkit.testing.markers import MARKERS, checks_leaks, merged_options, topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqkit.testing.auth_server import AuthNsqdServer
    from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
    from nsqkit.testing.tls import Certificates, TLSNsqdServer

Server = TypeVar("Server", bound="NsqdServer | NsqlookupdServer")

SCOPES: Final = ("function", "session")
"""The values of ``nsqd_scope``."""


# ---- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--nsqd`` and ``--nsqd-scope``, and their keys in the configuration file."""
    group = parser.getgroup("nsq", "fixtures of nsqkit")
    backend = "the nsqd of the fixtures: embedded (default), process, or the address HOST:PORT of a running nsqd"
    scope = "one nsqd for each test: function (default), or one for all, reset after each test: session"
    group.addoption("--nsqd", metavar="BACKEND", help=backend)
    group.addoption("--nsqd-scope", choices=SCOPES, help=scope)
    parser.addini("nsqd", backend, default="embedded")
    parser.addini("nsqd_scope", scope, default="function")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and check the options."""
    for description in MARKERS.values():
        config.addinivalue_line("markers", description)
    scope = _option(config, "nsqd_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"nsqd_scope is {scope!r}; allowed is {' or '.join(map(repr, SCOPES))}")
    backend = _option(config, "nsqd")
    if backend not in {"embedded", "process"} and not backend.rpartition(":")[2].isdigit():
        raise pytest.UsageError(f"nsqd is {backend!r}; allowed is 'embedded', 'process' or 'HOST:PORT'")


def _option(config: pytest.Config, name: str) -> str:
    value: str = config.getoption(name) or config.getini(name)
    return value


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return _option(config, "nsqd_scope")


# ---- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope=_scope)
def nsqd(request: pytest.FixtureRequest) -> Iterator[NsqdServer]:
    """An nsqd on a free port (``nsqkit.testing.servers.NsqdServer``): asyncio, trio or plain.

    ``@pytest.mark.nsqd(msg_timeout="2s")`` sets its options.
    """
    from nsqkit.testing.servers import NsqdServer

    with _started(request.node, "nsqd", partial(_make_nsqd, request.config, NsqdServer)) as server:
        yield server


@pytest.fixture(scope=_scope)
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[NsqlookupdServer]:
    """An nsqlookupd on a free port (``nsqkit.testing.servers.NsqlookupdServer``).

    ``@pytest.mark.nsqlookupd(tombstone_lifetime="5s")`` sets its options.
    """
    from nsqkit.testing.servers import NsqlookupdServer

    with _started(request.node, "nsqlookupd", NsqlookupdServer) as server:
        yield server


@pytest.fixture(scope=_scope)
def nsqd_tls(request: pytest.FixtureRequest, nsq_certificates: Certificates) -> Iterator[TLSNsqdServer]:
    """An nsqd that requires TLS (``nsqkit.testing.tls.TLSNsqdServer``): ``nsqd_tls.ca_file``, ``.ssl_context``."""
    from nsqkit.testing.tls import TLSNsqdServer

    make = partial(_make_nsqd, request.config, partial(TLSNsqdServer, nsq_certificates))
    with _started(request.node, "nsqd", make) as server:
        yield server


@pytest.fixture(scope=_scope)
def nsqd_mtls(request: pytest.FixtureRequest, nsq_certificates: Certificates) -> Iterator[TLSNsqdServer]:
    """An nsqd that requires certificates of clients: ``.client_certificate``, ``.client_key``, ``.ssl_context``."""
    from nsqkit.testing.tls import TLSNsqdServer

    make = partial(_make_nsqd, request.config, partial(TLSNsqdServer, nsq_certificates, mutual=True))
    with _started(request.node, "nsqd", make) as server:
        yield server


@pytest.fixture(scope=_scope)
def nsqd_auth(request: pytest.FixtureRequest) -> Iterator[AuthNsqdServer]:
    """An nsqd whose clients need a secret (``nsqkit.testing.auth_server``): ``nsqd_auth.auth.grant("secret")``."""
    from nsqkit.testing.auth_server import AuthNsqdServer, AuthServer

    with ExitStack() as stack:

        def make(clock: Any = "running", **options: Any) -> AuthNsqdServer:
            return AuthNsqdServer(stack.enter_context(AuthServer(clock)), **options)

        with _started(request.node, "nsqd", partial(_make_nsqd, request.config, make)) as server:
            yield server


@pytest.fixture(scope="session")
def nsq_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority and the certificates of a run of pytest (``nsqkit.testing.tls.Certificates``)."""
    from nsqkit.testing.tls import Certificates

    return Certificates.make(tmp_path_factory.mktemp("nsq-certificates"))


@pytest.fixture
def make_nsqd(request: pytest.FixtureRequest) -> Iterator[Callable[..., NsqdServer]]:
    """A function that starts an nsqd with the options of its keywords; all are stopped after the test."""
    from nsqkit.testing.servers import NsqdServer

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(_make_nsqd(request.config, NsqdServer, **options))


@pytest.fixture
def nsq_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses, in any process and any run: the name of the test and a suffix."""
    return topic_name(request.node.name, os.urandom(4).hex())


def _make_nsqd(config: pytest.Config, make: Callable[..., Server], **options: Any) -> Server:
    if (backend := _option(config, "nsqd")) != "embedded":
        options.setdefault("backend", backend)
    return make(**options)


@contextmanager
def _started(node: pytest.Item, marker: str, make: Callable[..., Server]) -> Iterator[Server]:
    """Enter a server with the options of the markers; a refusal of them is an error of the test, with file and line."""
    with ExitStack() as stack:
        try:
            options = merged_options(node.iter_markers(marker))
            checks_leaks(options)
            server = make(**options)
            stack.enter_context(server)
        except (TypeError, ValueError) as error:
            path, line, _ = node.reportinfo()
            pytest.fail(f"{path}:{(line or 0) + 1}: @pytest.mark.{marker}: {error}", pytrace=False)
        yield server
