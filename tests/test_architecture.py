"""The structure of nsqkit, as tests.

A few tables describe the structure; each test reads the code against them and lists every breach as ``file:line``. A
change of the structure changes a table here or in docs/architecture.md, and a record in docs/decisions/ gives the
reason.

A *package* is a package, or a module that stands alone, under nsqkit: the longest key of ARROWS that a module's dotted
name begins with.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

import nsqkit

ROOT = Path(__file__).resolve().parent.parent

# Package -> the packages that it may import, besides itself. Arrows point down.
ARROWS = {
    "errors": "",
    "clock": "",
    "wire": "errors",
    "transport": "errors clock",
    "http": "errors clock options transport",
    "loop_thread": "errors",
    "client": "errors clock options wire transport",
    "lookup": "errors clock options wire transport http client",
    "admin": "errors options wire transport http lookup",
    "options": "errors transport",
    "program": "errors options wire",
    "broker.core": "errors options wire",
    "producer": "errors clock options wire transport http client loop_thread",
    "consumer": "errors clock options wire transport client http lookup loop_thread",
    "broker": "errors clock options program wire transport http broker.core",
    "lookupd": "errors clock options program wire transport http",
    "telemetry": "errors options transport client producer consumer",
    "testing.link": "errors options wire",
    "testing.conformance": "errors transport wire",
    "testing": (
        "errors clock options wire transport http loop_thread admin consumer broker broker.core lookupd testing.link"
    ),
    "spark.slots": "errors",
    "spark": "spark.slots errors clock options wire transport http client lookup admin producer consumer",
    "spark.testing": "errors",
    "__init__": "errors options admin client producer consumer",
    "__main__": "broker lookupd testing.conformance",
}

# The modules that may do I/O, read a clock, start a thread or draw a random number. All others take bytes and the time
# as arguments, and a random.Random. docs/architecture.md marks the same modules.
IO_MODULES = {
    "__main__",
    "broker.file_store",
    "broker.memory_stats",
    "loop_thread.waker",
    "options.settings",
    "program.command",
    "spark.parquet_file",
    "spark.batch_reader",
    "spark.held_reader",
    "spark.read_task",
    "spark.sink",
    "spark.source",
    "spark.stored_reads",
    "spark.stream_reader",
    "spark.slots.fsspec_store",
    "spark.slots.local_store",
    "transport.tls_stream",
    "transport.tls",
    "transport.openssl",
    "transport.pem",
    "broker.tls",
    "broker.https",
    "clock",
    "transport.accept",
    "transport.timer",
    "transport.asyncio_stream",
    "transport.interrupts",
    "transport.memory",
    "transport.pump",
    "transport.push_stream",
    "transport.tcp",
    "loop_thread.one_shot",
    "loop_thread.provider",
    "loop_thread.loop_client",
    "http.client",
    "http.daemon",
    "http.debug",
    "http.server",
    "client.task_scope",
    "client.connection",
    "client.tls",
    "producer.thread_lease",
    "producer.publisher",
    "producer.producer",
    "consumer.active_handlers",
    "consumer.connections",
    "consumer.consumer",
    "consumer.subscription",
    "consumer.handling",
    "consumer.policy",
    "consumer.stop_signals",
    "consumer.batch_handling",
    "consumer.cancellation",
    "consumer.thread_message",
    "lookup.poller",
    "lookup.lookupd_client",
    "lookup.tls",
    "broker.auth",
    "broker.http_api",
    "broker.cli",
    "broker.lookup_announcer",
    "program.service",
    "broker.persistence",
    "broker.server",
    "broker.statsd",
    "lookupd.cli",
    "lookupd.server",
    "spark.bounded_run",
    "spark.drainer",
    "spark.reception",
    "spark.partition_writer",
    "spark.discovery",
    "spark.writer",
    "spark.testing.driver",
    "spark.testing.session",
    "spark.testing.standalone",
    "telemetry.instruments",
    "telemetry.prometheus",
    "testing.http_server",
    "testing.gate",
    "testing.http_front",
    "testing.plugin",
    "testing.blocking",
    "testing.state_machine",
    "testing.clock",
    "testing.deadlines",
    "testing.link.recording",
    "testing.disk",
    "testing.scripted",
    "testing.embedded",
    "testing.external",
    "testing.process",
    "testing.ports",
    "testing.proxy",
    "testing.conformance.connection",
    "testing.conformance.probe",
    "testing.conformance.run",
    "testing.conformance.stalls",
    "testing.conformance.cli",
    "testing.waiting",
    "testing.snapshot",
    "testing.tls",
}
IO_LIBRARIES = {
    *("anyio", "asyncio", "sniffio", "trio", "uvloop"),
    *("select", "selectors", "signal", "socket", "ssl"),
    *("fcntl", "fsspec", "mmap", "os", "shutil", "tempfile"),
    *("multiprocessing", "subprocess", "threading"),
    *("random", "secrets", "time"),
}

# Modules that something outside nsqkit opens: Python itself, pytest, or a user by name. Others must be imported.
ENTRY_POINTS = {
    *("__init__", "__main__"),
    *("telemetry.opentelemetry", "telemetry.prometheus"),
    "spark.testing.plugin",
    *("testing.plugin", "testing.scripted", "testing.state_machine", "testing.strategies"),
}

# Modules of which nothing runs: they declare protocols, for types alone. All others have a test of their own.
UNTESTED = {
    "broker.core.disk.file_store",
    "broker.running",
    "spark.slots.store",
    "transport.machine",
    "transport.push_stream",
    "wire.rules",
    "wire.transform",
}

# What `import nsqkit` must leave alone, so that it stays quick and needs no extra.
NOT_LOADED = {
    *("OpenSSL", "cramjam", "fsspec", "h11", "httpx", "opentelemetry", "prometheus_client"),
    *("pyarrow", "pyspark", "pytest", "re2", "trio", "uvloop"),
}

# The methods by which a driver calls a machine.
MACHINE_METHODS = {
    *("receive_data", "process_input", "receive_eof", "events", "data_to_send"),
    *("next_deadline", "handle_deadline"),
}

# Functions that create a value, which a machine may keep.
FACTORIES = {"make_tls"}

LINES_PER_MODULE = 500
LINES_PER_FUNCTION = 70
VAGUE_NAMES = {"base", "common", "helpers", "misc", "types", "util", "utils"}


@attrs.frozen
class Module:
    """One source file: its path, and its dotted name below nsqkit (a package's is ``package.__init__``)."""

    path: Path
    name: str

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> str | None:
        parts = self.name.split(".")
        heads = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((head for head in heads if head in ARROWS), None)

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@attrs.frozen
class Import:
    """One imported name: ``nsqkit.wire.frames`` or ``socket``; ``typing`` when it is there for types alone."""

    target: str
    line: int
    typing: bool

    @property
    def does_io(self) -> bool:
        return self.target.split(".")[0] in IO_LIBRARIES


@functools.cache
def modules() -> dict[str, Module]:
    package = ROOT / "nsqkit"
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        found[name] = Module(path, name)
    return found


@functools.cache
def imports(module: Module) -> list[Import]:
    """List all imports of a module, those inside functions too."""
    return list(_imports(module.tree, typing=False))


def _imports(node: ast.AST, *, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, typing) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            # Imports are absolute; ruff sees to that.
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, typing) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imports(child, typing=True)
        else:
            yield from _imports(child, typing=typing)


def imported(found: Import) -> Module | None:
    """Find the module that is imported; None for other libraries, and for the version, a constant of the package."""
    return None if found.target == "nsqkit.__version__" else resolve(found.target)


def resolve(target: str) -> Module | None:
    """Find the module that a dotted import leads to; the name of something in a module leads to the module."""
    head, *parts = target.split(".")
    if head != "nsqkit":
        return None
    for end in range(len(parts), -1, -1):
        name = ".".join(parts[:end])
        for candidate in (name, f"{name}.__init__".lstrip(".")):
            if candidate in modules():
                return modules()[candidate]
    return None


def rule(sentence: str) -> Callable[[Callable[[], Iterable[str]]], Callable[[], None]]:
    """Turn a function that lists the breaches of a rule into a test, which fails with the rule and the list."""

    def decorate(breaches: Callable[[], Iterable[str]]) -> Callable[[], None]:
        @functools.wraps(breaches)
        def test() -> None:
            if lines := sorted(set(breaches())):
                pytest.fail("\n  ".join([f"{sentence}:", *lines]), pytrace=False)

        return test

    return decorate


@rule("A package imports only the packages that ARROWS grants it")
def test_imports_follow_the_arrows() -> Iterator[str]:
    for module in modules().values():
        granted = [module.package, *ARROWS.get(module.package or "", "").split()]
        for found in imports(module):
            target = resolve(found.target)
            if target and target.package not in granted and found.target != "nsqkit.__version__":
                yield f"{module.at(found.line)}: {module.package} imports {found.target}, of {target.package}"


@rule("A module belongs to a package of ARROWS")
def test_every_module_has_a_package() -> Iterator[str]:
    return (module.at(1) for module in modules().values() if module.package is None)


@rule("ARROWS names packages that do not exist")
def test_every_package_exists() -> Iterable[str]:
    return ARROWS.keys() - {module.package for module in modules().values()}


@rule("Only IO_MODULES may do I/O, read a clock or draw random numbers")
def test_pure_modules_do_no_io() -> Iterator[str]:
    for name, module in modules().items():
        if name not in IO_MODULES:
            yield from (f"{module.at(line)}: {what}" for line, what in io_of(module))


def io_of(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each import of IO_LIBRARIES, except for types alone, and of each ``open()``."""
    yield from ((found.line, found.target) for found in imports(module) if found.does_io and not found.typing)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
            yield node.lineno, "open"


@rule("IO_MODULES names modules that are missing or do no I/O")
def test_io_modules_do_io() -> Iterable[str]:
    return IO_MODULES - {name for name, module in modules().items() if any(io_of(module))}


@rule("docs/architecture.md marks the modules of IO_MODULES")
def test_io_modules_are_marked_in_the_documentation() -> Iterable[str]:
    return IO_MODULES ^ {name for name, has_mark in listed_modules().items() if has_mark}


@rule("Nothing in nsqkit imports this module, and it is none of ENTRY_POINTS")
def test_every_module_is_used() -> Iterator[str]:
    targets = [resolve(found.target) for module in modules().values() for found in imports(module)]
    used = {target.name for target in targets if target} | ENTRY_POINTS
    return (module.at(1) for name, module in modules().items() if name not in used and not name.endswith("__init__"))


@rule("A module begins with a docstring")
def test_every_module_has_a_docstring() -> Iterator[str]:
    return (module.at(1) for module in modules().values() if not ast.get_docstring(module.tree))


@rule("Tests mirror the code")
def test_every_module_has_its_test() -> Iterator[str]:
    for name, module in modules().items():
        *folders, file = name.split(".")
        expected = Path("tests", *folders, f"test_{file}.py")
        if not file.startswith("__") and name not in UNTESTED and not (ROOT / expected).is_file():
            yield f"{module.at(1)} wants {expected}"


@rule("A module has a name that would fit any module")
def test_modules_have_specific_names() -> Iterator[str]:
    return (module.at(1) for name, module in modules().items() if VAGUE_NAMES & set(name.split(".")))


@rule("A module above the limit of LINES_PER_MODULE has two subjects")
def test_modules_are_short() -> Iterator[str]:
    for module in modules().values():
        if (count := module.text.count("\n")) > LINES_PER_MODULE:
            yield f"{module.at(1)}: {count} lines"


@rule("A function keeps to LINES_PER_FUNCTION")
def test_functions_are_short() -> Iterator[str]:
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > LINES_PER_FUNCTION:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {count} lines"


@rule("A change is finished: there is no mark of later work")
def test_no_mark_of_unfinished_work_remains() -> Iterator[str]:
    marks = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b")  # brackets, so that this line does not find itself
    for path in (*python_files(), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if marks.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def python_files() -> Iterator[Path]:
    for folder in ("nsqkit", "spark", "tests"):
        yield from (ROOT / folder).rglob("*.py")


@rule("`import nsqkit` loads what it should leave alone")
def test_importing_nsqkit_is_light() -> list[str]:
    program = f"import sys, nsqkit; print(*{NOT_LOADED} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.split()


@rule("What nsqkit exports has a docstring, and so have its public methods and properties")
def test_public_names_are_documented() -> Iterator[str]:
    for name in nsqkit.__all__:
        item = getattr(nsqkit, name)
        if not item.__doc__:
            yield name
        for member, value in vars(item).items() if inspect.isclass(item) else ():
            documented = inspect.isfunction(value) or isinstance(value, property)
            if documented and not member.startswith("_") and not value.__doc__:
                yield f"{name}.{member}"


@rule("Modules import each other in a circle")
def test_imports_have_no_circles() -> Iterator[str]:
    below = {
        name: {target.name for found in imports(module) if (target := imported(found))} - {name}
        for name, module in modules().items()
    }
    # Leave out, one after the other, the modules that import none of the rest; the rest is in circles or above them.
    while free := {name for name, targets in below.items() if not targets & below.keys()}:
        for name in free:
            del below[name]
    for name, targets in below.items():
        if name in _reachable(name, below):
            yield f"{modules()[name].at(1)} imports {', '.join(sorted(targets & below.keys()))}"


def _reachable(start: str, below: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    rest = [start]
    while rest:
        new = (below[rest.pop()] & below.keys()) - found
        found |= new
        rest += new
    return found


@rule("A module imports a module of its package that docs/architecture.md lists after it")
def test_imports_inside_a_package_point_down() -> Iterator[str]:
    position = {name: number for number, name in enumerate(listed_modules())}
    for name, module in modules().items():
        for found in imports(module):
            target = resolve(found.target)
            if target is None or target.package != module.package or "__init__" in name + target.name:
                continue
            if target.name != name and position.get(target.name, 0) > position.get(name, 0):
                yield f"{module.at(found.line)} imports {target.name}"


@rule("docs/architecture.md lists each module once, and no other module")
def test_the_architecture_page_lists_each_module_once() -> Iterable[str]:
    rows = [name for name, _ in module_rows()]
    repeated = [name for name in rows if rows.count(name) > 1]
    return [*repeated, *(set(rows) ^ {name for name in modules() if not name.endswith("__init__")})]


def listed_modules() -> dict[str, bool]:
    """Return the modules of docs/architecture.md, in their order, and whether each is marked as doing I/O."""
    return dict(module_rows())


def module_rows() -> Iterator[tuple[str, bool]]:
    folder = None
    for line in (ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"### `([\w/]+)/`", line):
            folder = "" if heading[1] == "nsqkit" else heading[1].replace("/", ".") + "."
        elif folder is not None and (row := re.match(r"\| `(\w+)\.py`( ⚡)? \|", line)):
            yield folder + row[1], bool(row[2])


@rule("A machine keeps a function of its owner: it must return events instead")
def test_machines_keep_no_functions() -> Iterator[str]:
    for name, module in modules().items():
        if name in IO_MODULES:
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            if not MACHINE_METHODS & methods.keys() or "__init__" not in methods:
                continue
            arguments = methods["__init__"].args
            for argument in (*arguments.args, *arguments.kwonlyargs):
                if argument.annotation is None or argument.arg in FACTORIES:
                    continue
                if "Callable" in ast.unparse(argument.annotation) or argument.arg.startswith("on_"):
                    yield f"{module.at(argument.lineno)}: {node.name} takes {argument.arg}"
