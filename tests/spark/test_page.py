"""docs/spark.md against the code: options and columns of a read; test_writer_options.py has those of a write."""

from __future__ import annotations

from nsqkit.spark import source_options
from nsqkit.spark.option_text import NSQ_OPTIONS, PREFIX, TextOption
from nsqkit.spark.schema import DDL
from tests.pages import ROOT, rows

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under a heading, up to the next one."""
    return PAGE.partition(f"\n{title}\n")[2].partition("\n#")[0]


def row(option: TextOption) -> list[str]:
    """Return the row of an option."""
    names = " or ".join(f"`{name}`" for name in (option.name, *option.aliases))
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    shown = "" if default in {None, "", ()} else f"`{default}`"
    meaning = option.meaning or f"Allowed is {option.allowed}."
    only = f" {'Streams' if option.reads == 'stream' else 'Batch reads'} only." if option.reads else ""
    return [names, shown, meaning + only]


def test_table_has_the_options_of_a_read():
    own = [row(option) for option in source_options.OPTIONS if not option.name.startswith(PREFIX)]
    assert list(rows(section("### Options of a read"))) == own


def test_table_has_the_options_of_connections():
    found = list(rows(section("### TLS, AUTH, compression")))
    assert found == [[row(option)[0], row(option)[2]] for option in NSQ_OPTIONS]


def test_table_has_the_columns_of_a_read():
    found = [cells[:2] for cells in rows(section("### Columns of a read"))]
    assert [f"{name.strip('`')} {type_}" for name, type_ in found] == DDL.split(", ")
