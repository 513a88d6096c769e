"""Runs every example of the documentation: README.md, the other pages beside it, and everything under docs/.

Each fenced block of a page is of one of these kinds:

* ``python``: runs unchanged, with ``await`` at top level if the block uses it, on asyncio and on trio, with its own
  broker instead of 127.0.0.1:4150. pytest runs the blocks of a page that define ``test_…`` functions, each as a file.
  A block that imports pyspark runs if that is installed (``tox -e spark``). No block can be excluded.
  ``tests/test_examples.py`` runs the blocks that are files of docs/examples.
  ``tests/integration/clients/test_migrating.py`` runs the blocks under docs/migrating, which are programs that run
  until a signal, and ``test_testing_page.py`` there those of docs/testing-other-clients.md, and
  ``tests/spark_chaos/test_page.py`` those of docs/spark-testing.md.
* ``pycon``: the blocks of a page together are a doctest.
* ``sh`` and ``console``: each command begins with an entry of COMMANDS, which names the file that runs it.
* ``text``, ``toml``, ``json``: pictures, output and data, which no test reads. ``go``: programs for go-nsq.
* ``{eval-rst}``: directives of Sphinx, which ``tox -e docs`` builds and ``tests/test_reference.py`` reads.

Links to other files of the project name a file.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.pages import (
    EXAMPLES,
    MIGRATING,
    OTHER_CLIENTS,
    PAGES,
    ROOT,
    SPARK_TESTING,
    Block,
    blocks,
    blocks_of,
    name,
    rows,
)
from tests.stepping import step

# Beginning of a command in the documentation -> the file that runs it, and the words in that file.
COMMANDS = {
    "make test": (".ci/run", "step make test"),
    "make demo": (".ci/run", "step make demo"),
    "make versions": ("Makefile", "run -e py311,"),
    "make bench": ("Makefile", "run -e bench"),
    "python -m nsqkit nsqd": ("tox.ini", "-m nsqkit nsqd"),
    "python -m nsqkit conformance": ("tests/testing/conformance/test_cli.py", "def test_commands_of_the_page_run"),
    "pip install .": ("tox.ini", "-e ."),
    "spark-submit": ("tests/spark_chaos/test_submitted_jobs.py", '"spark-submit"'),
    "spark-class": ("nsqkit/spark/testing/standalone.py", '"spark-class"'),
}

LANGUAGES = ["python", "pycon", "sh", "console", "text", "toml", "json", "go", "{eval-rst}"]

DECISION_LINES_MAX = 25

# The address in the examples, nsqd's default.
ADDRESS = "127.0.0.1:4150"


TESTS = re.compile(r"^(async )?def test_", re.MULTILINE)

EXAMPLE_TEXTS = {path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}

PYTHON = [
    pytest.param(
        block,
        id=str(block),
        marks=pytest.mark.skipif(
            "pyspark" in block.text and not importlib.util.find_spec("pyspark"),
            reason="needs pyspark: run by tox -e spark",
        ),
    )
    for block in blocks("python")
    if MIGRATING not in block.page.parents and block.text not in EXAMPLE_TEXTS and not TESTS.search(block.text)
]


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_run(block: Block, anyio_backend: str, nsqd: Any):
    run(block.text.replace(ADDRESS, nsqd.tcp_address), block, anyio_backend)


def run(source: str, block: Block, backend: str) -> None:
    """Run a block as a program; its tracebacks have the lines of the page."""
    program = compile("\n" * (block.line - 1) + source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    namespace: dict[str, Any] = {"__name__": "__main__"}

    async def main() -> None:
        await eval(program, namespace)

    if program.co_flags & inspect.CO_COROUTINE:
        anyio.run(main, backend=backend)
    else:
        exec(program, namespace)


WITH_TESTS = sorted(
    {block.page for block in blocks("python") if TESTS.search(block.text)} - {OTHER_CLIENTS, SPARK_TESTING}
)


@pytest.mark.parametrize("page", WITH_TESTS, ids=name)
def test_test_blocks_pass(page: Path, tmp_path: Path):
    run_test_blocks(page, tmp_path)


def run_test_blocks(page: Path, folder: Path, *arguments: str) -> None:
    """Have pytest run the blocks of a page that define tests, each as a file, after one that names plugins."""
    for block in blocks_of(page):
        if block.language == "python" and TESTS.search(block.text):
            (folder / f"test_line_{block.line}.py").write_text(block.text)
        elif block.text.startswith("pytest_plugins"):
            (folder / "conftest.py").write_text(block.text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-p",
        "no:trio",
        "-W",
        "error",
        str(folder),
        *arguments,
    ]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


SESSIONS = sorted({block.page for block in blocks("pycon")})


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_pycon_blocks_are_doctests(page: Path):
    source = "\n".join(block.text for block in blocks_of(page) if block.language == "pycon")
    test = doctest.DocTestParser().get_doctest(source, {}, str(page), str(page), 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=report.append)
    assert not result.failed, "".join(report)
    assert result.attempted


def test_loop_of_the_architecture_page_is_that_of_the_tests():
    page = next(block.text for block in blocks_of(ROOT / "docs" / "architecture.md") if block.language == "pycon")
    (shown,) = ast.parse(doctest.DocTestParser().get_examples(page)[0].source).body
    (used,) = ast.parse(inspect.getsource(step)).body
    assert isinstance(shown, ast.FunctionDef)
    assert isinstance(used, ast.FunctionDef)
    assert [*map(ast.unparse, shown.body)] == [*map(ast.unparse, used.body)]


@pytest.mark.parametrize("block", blocks("sh", "console"), ids=str)
def test_commands_are_run_by_a_file(block: Block):
    for line in block.text.splitlines():
        command = line.removeprefix("$ ").partition("#")[0].strip()
        is_output = block.language == "console" and not line.startswith("$ ")
        if command and not is_output:
            assert any(command.startswith(known) for known in COMMANDS), f"{block}: nothing runs {command!r}"


@pytest.mark.parametrize("command", COMMANDS)
def test_table_of_commands_is_correct(command: str):
    path, words = COMMANDS[command]
    assert words in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not run {command!r}"


def test_figures_of_the_readme_are_those_of_the_performance_page():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Performance\n")[2].partition("\n## ")[0]
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    figures = [figure for row in rows(table) for cell in row[1:] for figure in re.findall(r"[\d,.]+\d", cell)]
    commands = re.findall(r"`(make bench [^`]+)`", table)
    assert len(figures) == 6
    assert commands
    assert all(re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.])", page) for figure in figures)
    assert all(command in page for command in commands)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_name_files(page: Path):
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text(encoding="utf-8"))
    dead = [link for link in links if not (page.parent / link).is_file()]
    assert not dead, f"{name(page)} links to no file: {', '.join(dead)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path):
    named = re.findall(r"`((?:nsqkit|tests|docs|spark)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    # nsqkit has a package named as the folder spark/.
    missing = [path for path in named if not (ROOT / path).exists() and not (ROOT / "nsqkit" / path).exists()]
    assert not missing, f"{name(page)} names {', '.join(missing)}"


@pytest.mark.parametrize("page", [page for page in PAGES if re.match(r"\d{4}-", page.name)], ids=name)
def test_decision_has_at_most_half_a_page(page: Path):
    assert page.read_text(encoding="utf-8").count("\n") <= DECISION_LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_are_of_a_known_kind(page: Path):
    found = list(blocks_of(page))
    unknown = [f"{block}: {block.language!r}" for block in found if block.language not in LANGUAGES]
    assert not unknown, f"a block is one of {LANGUAGES}"
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(found), f"{name(page)}: a fence is not closed"
