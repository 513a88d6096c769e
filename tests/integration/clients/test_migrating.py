"""Runs the programs of docs/migrating: those of other clients, and nsqkit's beside them.

Each page has the sections of SECTIONS. A Python block in one of them is a whole program: one that imports nsqkit is
*ours*, the other is *theirs*. Each runs as a process with its own broker, and is stopped by SIGTERM if it does not end
by itself; ours runs on asyncio and on trio, if it runs on either. The same checks apply to both: the broker's state of
the topic and its channel afterwards (/stats), and, for anything that /stats does not have, the commands that the broker
received.

The test changes nothing in a program but the addresses, all of them in one pass, and the name of the backend.

A program of ours that is on several pages runs once. Theirs need the client, and are skipped where it is not
installed; ``tox -e clients`` has all clients that are in Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest

from nsqkit import Consumer, ConsumerOptions, Message, Producer, ProducerOptions
from nsqkit.consumer.handler_options import HandlerOptions
from tests.integration.clients.processes import Server, run_nsqlookupd
from tests.integration.clients.protection import AuthServer, Certificates
from tests.integration.clients.relay import relay
from tests.pages import MIGRATING, ROOT, Block, blocks, blocks_of

pytestmark = pytest.mark.timeout(120)

WAIT_LIMIT = 40.0
"""Seconds after which a program counts as stuck: some wait for a second or two, and the machine may be busy."""

TICK = 0.02
"""Seconds between two checks of a broker."""

RunNsqd: TypeAlias = "Callable[..., AbstractContextManager[Server]]"

PAGES = sorted(MIGRATING.glob("*.md"))

# Page -> the module of that client; None where it is not in Python.
MODULES = {"ansq": "ansq", "gnsq": "gnsq", "go-nsq": None, "pynsq": "nsq"}

PUBLISH, CONSUME, DISCOVER, PROTECT, BATCHES = SECTIONS = [
    "Publish",
    "Consume",
    "Find nsqds through nsqlookupd",
    "TLS and AUTH",
    "Batches",
]

# Features that a client lacks are described on its page, where our program stands alone.
CANNOT = {("ansq", PROTECT)}


def is_ours(block: Block) -> bool:
    return "from nsqkit import" in block.text


@attrs.frozen
class Example:
    """A program: its text, whether it is ours, and the backend that it runs on, if it runs on one."""

    section: str
    text: str
    is_ours: bool
    backend: str = ""


def ours() -> list[Any]:
    found: dict[tuple[str, str], Block] = {}
    for block in blocks("python"):
        if block.page in PAGES and is_ours(block):
            found.setdefault((block.section, block.text), block)
    return [
        pytest.param(Example(section, text, True, backend), id=f"{block}-{backend or 'threads'}")
        for (section, text), block in found.items()
        for backend in (["asyncio", "trio"] if "anyio.run" in text else [""])
    ]


def theirs() -> list[Any]:
    return [
        pytest.param(Example(block.section, block.text, False), id=str(block), marks=needs(block.page))
        for block in blocks("python")
        if block.page in PAGES and not is_ours(block)
    ]


def needs(page: Path) -> pytest.MarkDecorator:
    module = MODULES[page.stem]
    assert module is not None
    return pytest.mark.skipif(not importlib.util.find_spec(module), reason=f"needs {module}: run by tox -e clients")


def examples_of(section: str) -> pytest.MarkDecorator:
    """Run a test with each program of that section, of ours and of others."""
    all_of_them = [param for param in (*ours(), *theirs()) if param.values[0].section == section]
    return pytest.mark.parametrize("example", all_of_them)


@attrs.define(eq=False)
class Running:
    """A running program."""

    process: subprocess.Popen[str]
    output: Path

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Return when ``condition`` holds; fail if the program ends before."""
        deadline = time.monotonic() + WAIT_LIMIT
        while not condition():
            assert time.monotonic() < deadline, f"it has not come about\n{self.printed}"
            try:
                code = self.process.wait(TICK)
            except subprocess.TimeoutExpired:
                continue
            assert condition(), f"the program has ended, with {code}\n{self.printed}"

    def wait_ended(self) -> None:
        """Return when it has ended with status 0."""
        code = self.process.wait(WAIT_LIMIT)
        assert code == 0, f"the program has ended, with {code}\n{self.printed}"

    def stop(self) -> None:
        """Stop it, and return when it has ended."""
        self.process.terminate()
        self.wait_ended()

    @property
    def printed(self) -> str:
        """Its output, errors included."""
        return self.output.read_text(encoding="utf-8")


@contextmanager
def running(example: Example, folder: Path, **addresses: str) -> Iterator[Running]:
    """Run a program in a folder; 127.0.0.1:4150 and 127.0.0.1:4161 are ``nsqd`` and ``lookupd`` there."""
    here = {"4150": addresses.get("nsqd"), "4161": addresses.get("lookupd")}
    text = re.sub(r"\b127\.0\.0\.1:(\d+)", lambda match: here[match[1]] or match[0], example.text)
    if example.backend:
        text, count = re.subn(
            r"^anyio\.run\(main\)$", f"anyio.run(main, backend={example.backend!r})", text, flags=re.M
        )
        assert count == 1, "it ends with anyio.run(main)"
    program, output = folder / "program.py", folder / "output"
    program.write_text(text, encoding="utf-8")
    warnings = ["-W", "error"] if example.is_ours else []  # other clients' warnings are not errors
    with (
        output.open("w") as pipe,
        subprocess.Popen(
            [sys.executable, "-u", *warnings, program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield Running(process, output)
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the program, other than that of the broker's files."""
    folder = tmp_path / "program"
    folder.mkdir()
    return folder


def make_channel(nsqd: Server, *bodies: str) -> None:
    """Create the channel that all programs consume, with messages in it."""
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    if bodies:
        nsqd.post("/mpub?topic=orders", "\n".join(bodies))


def channel_of(nsqd: Server) -> Any:
    (topic,) = nsqd.get("/stats?format=json&topic=orders")["topics"]
    (channel,) = topic["channels"]
    return channel


def is_finished(nsqd: Server, message_count: int) -> bool:
    """Return whether so many messages have been delivered, and each of them was answered."""
    channel = channel_of(nsqd)
    left = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return channel["message_count"] == message_count and not left


# ---- the sections --------------------------------------------------------------------------------------------------


@examples_of(PUBLISH)
def test_publishing(example: Example, broker: RunNsqd, folder: Path):
    with broker() as nsqd:
        make_channel(nsqd)
        with running(example, folder, nsqd=nsqd.tcp_address) as program:
            program.wait_ended()
        # The deferred message is due after an hour, longer than any machine takes for the test.
        channel = channel_of(nsqd)
        assert (channel["depth"], channel["deferred_count"]) == (3, 1), program.printed


@examples_of(CONSUME)
def test_messages_are_finished_requeued_and_touched(example: Example, broker: RunNsqd, folder: Path):
    with broker() as nsqd, relay(nsqd.tcp_address) as way:
        make_channel(nsqd, "one", "slow", "too early", "broken")
        with running(example, folder, nsqd=way.address) as program:
            program.wait_until(lambda: is_finished(nsqd, 4) and channel_of(nsqd)["requeue_count"] == 2)
            (client,) = channel_of(nsqd)["clients"]
            assert (client["finish_count"], client["requeue_count"]) == (4, 2)
            assert way.received.count(b"TOUCH ") == 1
            program.stop()
        assert not example.is_ours or b"CLS\n" in way.received
        assert channel_of(nsqd)["timeout_count"] == 0


@examples_of(DISCOVER)
def test_messages_of_listed_nsqds_are_consumed(example: Example, broker: RunNsqd, folder: Path):
    with run_nsqlookupd() as lookupd, broker(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd:
        make_channel(nsqd, "one", "two")
        with running(example, folder, lookupd=lookupd.http_address) as program:
            program.wait_until(lambda: is_finished(nsqd, 2))
            program.stop()


@examples_of(PROTECT)
def test_messages_of_a_broker_with_tls_and_auth_are_consumed(
    example: Example, broker: RunNsqd, folder: Path, certificates: Certificates, auth_server: AuthServer
):
    flags = [
        f"--tls-cert={certificates.server}",
        f"--tls-key={certificates.server}",
        "--tls-required=tcp-https",
    ]
    with broker(*flags, "--https-address=127.0.0.1:0", f"--auth-http-address={auth_server.address}") as nsqd:
        make_channel(nsqd, "one")
        (folder / "ca.pem").write_text(Path(certificates.ca).read_text())
        with running(example, folder, nsqd=nsqd.tcp_address) as program:
            program.wait_until(lambda: is_finished(nsqd, 1))
            (client,) = channel_of(nsqd)["clients"]
            assert (client["tls"], client["authed"]) == (True, True)
            program.stop()


@examples_of(BATCHES)
def test_batches_are_finished_together(example: Example, broker: RunNsqd, folder: Path):
    bodies = [f"order-{n}" for n in range(50)]
    with broker() as nsqd:
        make_channel(nsqd, *bodies)
        with running(example, folder, nsqd=nsqd.tcp_address) as program:
            program.wait_until(lambda: is_finished(nsqd, len(bodies)))
            sizes = [int(size) for size in re.findall(r"^(\d+) orders$", program.printed, re.MULTILINE)]
            assert sum(sizes) == len(bodies)
            assert max(sizes) > 1
            program.stop()
        assert channel_of(nsqd)["requeue_count"] == 0


# ---- the pages ---------------------------------------------------------------------------------------------------


def test_table_of_modules_has_every_page():
    assert [page.stem for page in PAGES] == sorted(MODULES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_both_programs_in_each_section(page: Path):
    headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [*SECTIONS, "Names", "Differences"]
    sides = {
        section: sorted(side(block) for block in blocks_of(page) if block.section == section) for section in headings
    }
    their_side = "python" if MODULES[page.stem] else "go"
    for section in SECTIONS:
        expected = ["ours"] if (page.stem, section) in CANNOT else [their_side, "ours"]
        assert sides.pop(section) == sorted(expected), f"{page.stem}: {section}"
    assert not any(sides.values())


def side(block: Block) -> str:
    return "ours" if is_ours(block) else block.language


OPTIONS = {
    field.name for options in (ConsumerOptions, ProducerOptions, HandlerOptions) for field in attrs.fields(options)
} | {"nsqd_tcp_addresses", "lookupd_http_addresses", "on_backoff", "on_connection", "serializer"}

OWNERS = {"producer": Producer, "consumer": Consumer, "message": Message}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_nsqkit_exist(page: Path):
    """In the second column, each word in backticks is an option, a member of the three classes, or importable."""
    table = page.read_text(encoding="utf-8").partition("## Names")[2].partition("## Differences")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    words = [word for row in rows for word in re.findall(r"`([\w.]+)[^`]*`", row[1])]
    assert not [word for word in words if not is_known(word)]


def is_known(word: str) -> bool:
    owner, _, member = word.partition(".")
    if owner in OWNERS and member:
        return hasattr(OWNERS[owner], member)
    if owner == "nsqkit" and member:
        module, _, name = word.rpartition(".")
        return hasattr(importlib.import_module(module), name)
    return word in OPTIONS
