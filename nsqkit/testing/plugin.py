"""The pytest plugin: fixtures for tests that need NSQ.

nsqkit is imported only when a test uses a fixture.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from nsqkit.testing.markers import MARKERS, checks_leaks, merged_options, topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from contextlib import AbstractContextManager

    from nsqkit.testing.auth_server import AuthNsqdServer
    from nsqkit.testing.cluster import Cluster
    from nsqkit.testing.leaks import LeakCheck
    from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
    from nsqkit.testing.tls import Certificates, TLSNsqdServer

Server = TypeVar("Server", bound="AbstractContextManager[Any]")

_SERVERS: Final = pytest.StashKey[list[Any]]()
"""The servers of the fixtures: of a test, until it is reported, or of the session, while they run."""

_CHECK: Final[pytest.StashKey[LeakCheck]] = pytest.StashKey()
"""The check of the present test for the servers of the session, once there has been one."""

_HAS_LOOP_THREAD: Final = pytest.StashKey[bool]()
"""The run has started the thread of the servers."""

_MARKED: Final = {"nsqd": ("nsqd", "nsqd_tls", "nsqd_mtls", "nsqd_auth"), "nsqlookupd": ("nsqlookupd",)}
"""The fixtures that take the options of a marker, of those with the scope of ``nsqd_scope``."""

_FAILED: Final = pytest.StashKey[bool]()
"""A phase of the present run of the test has failed, or was interrupted."""

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
    if scope == "session":
        config.pluginmanager.register(_SharedServers(), "nsqkit-session")


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

    with _serving(request, "nsqd") as servers:
        yield servers.start_nsqd(NsqdServer, **servers.options)


@pytest.fixture(scope=_scope)
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[NsqlookupdServer]:
    """An nsqlookupd on a free port (``nsqkit.testing.servers.NsqlookupdServer``).

    ``@pytest.mark.nsqlookupd(tombstone_lifetime="5s")`` sets its options.
    """
    from nsqkit.testing.servers import NsqlookupdServer

    with _serving(request, "nsqlookupd") as servers:
        yield servers.start(NsqlookupdServer, **servers.options)


@pytest.fixture
def nsq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three nsqds that are registered with two nsqlookupds (``nsqkit.testing.cluster.Cluster``).

    ``@pytest.mark.nsq_cluster(nsqds=2, nsqlookupds=1)`` sets the numbers, and options of the nsqds.
    """
    from nsqkit.testing.cluster import Cluster

    with _serving(request, "nsq_cluster") as servers:
        yield servers.start_nsqd(Cluster, **servers.options)


@pytest.fixture(scope=_scope)
def nsqd_tls(request: pytest.FixtureRequest, nsq_certificates: Certificates) -> Iterator[TLSNsqdServer]:
    """An nsqd that requires TLS (``nsqkit.testing.tls.TLSNsqdServer``): ``nsqd_tls.ca_file``, ``.ssl_context``."""
    from nsqkit.testing.tls import TLSNsqdServer

    with _serving(request, "nsqd") as servers:
        yield servers.start_nsqd(partial(TLSNsqdServer, nsq_certificates), **servers.options)


@pytest.fixture(scope=_scope)
def nsqd_mtls(request: pytest.FixtureRequest, nsq_certificates: Certificates) -> Iterator[TLSNsqdServer]:
    """An nsqd that requires certificates of clients: ``.client_certificate``, ``.client_key``, ``.ssl_context``."""
    from nsqkit.testing.tls import TLSNsqdServer

    with _serving(request, "nsqd") as servers:
        yield servers.start_nsqd(partial(TLSNsqdServer, nsq_certificates, mutual=True), **servers.options)


@pytest.fixture(scope="session")
def nsq_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority and the certificates of a run of pytest (``nsqkit.testing.tls.Certificates``)."""
    from nsqkit.testing.tls import Certificates

    return Certificates.make(tmp_path_factory.mktemp("nsq-certificates"))


@pytest.fixture(scope=_scope)
def nsqd_auth(request: pytest.FixtureRequest) -> Iterator[AuthNsqdServer]:
    """An nsqd whose clients need a secret (``nsqkit.testing.auth_server``): ``nsqd_auth.auth.grant("secret")``."""
    from nsqkit.testing.auth_server import AuthNsqdServer, AuthServer

    with ExitStack() as stack:

        def make(clock: Any = "running", **options: Any) -> AuthNsqdServer:
            return AuthNsqdServer(stack.enter_context(AuthServer(clock)), **options)

        with _serving(request, "nsqd") as servers:
            yield servers.start_nsqd(make, **servers.options)


@pytest.fixture
def make_nsqd(request: pytest.FixtureRequest) -> Iterator[Callable[..., NsqdServer]]:
    """A function that starts an nsqd with the options of its keywords; all are stopped after the test."""
    from nsqkit.testing.servers import NsqdServer

    with _serving(request, "nsqd") as servers:
        yield partial(servers.start_nsqd, NsqdServer)


@pytest.fixture
def nsq_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses, in any process and any run: the name of the test and a suffix."""
    return topic_name(request.node.name, os.urandom(4).hex())


# ---- servers of fixtures --------------------------------------------------------------------------------------------


class _Servers:
    """Starts the servers of one fixture.

    Attributes:
        options: those of the markers.
    """

    def __init__(self, request: pytest.FixtureRequest, marker: str, stack: ExitStack) -> None:
        from nsqkit.testing.leaks import LeakCheck

        _keep_loop_thread(request.config)
        self.check = LeakCheck()
        if not isinstance(request.node, pytest.Item):
            self.check = request.node.stash.setdefault(_CHECK, self.check)
        self.options = merged_options(request.node.iter_markers(marker))
        self.is_strict = checks_leaks(self.options) and checks_leaks(merged_options(request.node.iter_markers("nsqd")))
        self._request = request
        self._stack = stack

    def start(self, make: Callable[..., Server], **options: Any) -> Server:
        server = make(**options)
        self._stack.enter_context(server)
        started = self._request.node.stash.setdefault(_SERVERS, [])
        started.append(server)
        if not isinstance(self._request.node, pytest.Item):
            self._stack.callback(started.remove, server)
        for nsqd in _nsqds_of([server]):
            self.check.add(nsqd)
        return server

    def start_nsqd(self, make: Callable[..., Server], **options: Any) -> Server:
        if (backend := _option(self._request.config, "nsqd")) != "embedded":
            options.setdefault("backend", backend)
        return self.start(make, **options)


def _keep_loop_thread(config: pytest.Config) -> None:
    """Keep the thread of the servers for the rest of the run; to start it takes as long as to start an nsqd."""
    if _HAS_LOOP_THREAD not in config.stash:
        from nsqkit.loop_thread import portal_provider

        provider = portal_provider()
        provider.__enter__()
        config.add_cleanup(partial(provider.__exit__, None, None, None))
        config.stash[_HAS_LOOP_THREAD] = True


@contextmanager
def _serving(request: pytest.FixtureRequest, marker: str) -> Iterator[_Servers]:
    """Enter with the servers of a fixture; they are stopped at the end.

    A refusal of the markers is an error of the test, with its file and line. Leaks are an error of the test, too.
    """
    if marker == "nsqd" and "nsqlookupd" in request.fixturenames:
        request.getfixturevalue("nsqlookupd")  # it stops after the nsqds, which would log that it is gone
    node = request.node
    leaks: list[str] = []
    with ExitStack() as stack:
        with _refusing(node, marker):
            servers = _Servers(request, marker, stack)
            yield servers
        if servers.is_strict and isinstance(node, pytest.Item) and not node.stash.get(_FAILED, False):
            leaks = servers.check.leaks()
    _fail(leaks)


@contextmanager
def _refusing(node: pytest.Item | pytest.Session, marker: str) -> Iterator[None]:
    """Have a refusal of options fail the test, with the file and the line of the test that has them."""
    refusal = ""
    try:
        yield
    except (TypeError, ValueError) as error:
        refusal = str(error)
    if refusal:
        place = "--nsqd"  # the servers of a session have no other options
        if isinstance(node, pytest.Item):
            path, line, _ = node.reportinfo()
            place = f"{path}:{(line or 0) + 1}: @pytest.mark.{marker}"
        pytest.fail(f"{place}: {refusal}", pytrace=False)


def _fail(leaks: list[str]) -> None:
    if leaks:
        waived = 'a test with @pytest.mark.nsqd(leaks="allow") may leave them open'
        pytest.fail("\n".join([*leaks, f"({waived})"]), pytrace=False)


def _all_of(servers: Iterable[Any]) -> list[Any]:
    """Return servers, with those of clusters in their place."""
    return [
        each
        for server in servers
        for each in ([*server.nsqds, *server.nsqlookupds] if hasattr(server, "nsqds") else [server])
    ]


def _nsqds_of(servers: Iterable[Any]) -> list[NsqdServer]:
    """Return the nsqds among servers, and those of clusters."""
    return [server for server in _all_of(servers) if hasattr(server, "journal")]


class _SharedServers:
    """The plugin of a run with servers for the whole session: checks and resets them after each test."""

    @pytest.fixture(autouse=True)
    def _nsq_reset(self, request: pytest.FixtureRequest) -> Iterator[None]:
        node, stash = request.node, request.session.stash
        servers = stash.setdefault(_SERVERS, [])
        is_strict = self._is_strict(node)
        if _CHECK in stash:
            from nsqkit.testing.leaks import LeakCheck

            stash[_CHECK] = LeakCheck()
            for nsqd in _nsqds_of(servers):
                stash[_CHECK].add(nsqd)
        yield
        if not servers:  # the test may have started the first one
            return
        leaks = stash[_CHECK].leaks() if is_strict and not node.stash.get(_FAILED, False) else []
        for server in servers:
            if not server.is_running:
                server.start()
            server.reset()
        _fail(leaks)

    def _is_strict(self, node: pytest.Item) -> bool:
        """Return True if leaks are to be reported; fail for options, which servers of the session cannot take."""
        used = getattr(node, "fixturenames", ())
        is_strict = True
        for marker, fixtures in _MARKED.items():
            with _refusing(node, marker):
                options = merged_options(node.iter_markers(marker))
                is_strict = checks_leaks(options) and is_strict
                if options and any(fixture in used for fixture in fixtures):
                    raise ValueError(f"{', '.join(options)}: allowed with nsqd_scope=function only, or for make_nsqd")
        return is_strict


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the journal of the test's servers to the report of its first failure."""
    report = yield
    if report.failed and call.when == "call" and call.excinfo is not None:
        sentence = _unsupported(call.excinfo.value)
        if sentence is not None:  # unittest does not raise the error, but hands it in with the report
            call.excinfo = pytest.CallInfo.from_call(partial(pytest.skip, sentence), "call").excinfo
            report = pytest.TestReport.from_item_and_call(item, call)
    if report.failed and not item.stash.get(_FAILED, False):
        item.stash[_FAILED] = True
        servers = [*item.stash.get(_SERVERS, ()), *item.session.stash.get(_SERVERS, ())]
        if servers:
            from nsqkit.testing.report import sections

            report.sections += sections(_all_of(servers))
    if report.when == "teardown" and _SERVERS in item.stash:
        del item.stash[_SERVERS]  # the item lives as long as the session
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Check no leaks of a test that was interrupted: an error in the session's end would replace the summary."""
    try:
        return (yield)
    except BaseException:
        item.stash[_FAILED] = True
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose fixture needs more than the backend can do."""
    item.stash[_FAILED] = False  # another plugin may run the test again
    yield from _skipped()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test that needs more than the backend can do."""
    yield from _skipped()


def _skipped() -> Generator[None, None, None]:
    try:
        yield
    except Exception as error:
        sentence = _unsupported(error)
        if sentence is None:
            raise
    else:
        return
    pytest.skip(sentence)


def _unsupported(error: BaseException) -> str | None:
    """Return the text of an ``Unsupported``; None for another error."""
    errors = sys.modules.get("nsqkit.testing.errors")
    return None if errors is None else _sentence(error, errors.Unsupported)


def _sentence(error: BaseException, kind: type[Exception]) -> str | None:
    """Return the text of an error of this kind, also in groups that contain no other kind."""
    if isinstance(error, ExceptionGroup):
        sentences = {_sentence(each, kind) for each in error.exceptions}
        return None if None in sentences else ", ".join(filter(None, sentences))
    return str(error) if isinstance(error, kind) else None
