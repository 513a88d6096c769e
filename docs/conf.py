"""Sphinx settings for the documentation site: ``tox run -e docs`` builds it.

The source folder is the root of the repository, since README.md, CONTRIBUTING.md and CHANGELOG.md are pages of the
site too. So a link works on the site as it does in the repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nsqkit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "nsqkit"
author = "nsqkit contributors"
version = release = nsqkit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "spark/README.md"]
# Sphinx walks every folder that is not excluded, and the environments in .tox contain pages of other projects.
exclude_patterns = ["**/.*", "build", "dist", "nsqkit", "tests", "**/__pycache__"]

myst_heading_anchors = 3
html_theme = "furo"
templates_path = ["templates"]
html_additional_pages = {"index": "redirect.html"}  # the first page is docs/index.html
html_title = f"nsqkit {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# Libraries that are large or compiled, and not needed to read docstrings.
autodoc_mock_imports = ["pyspark", "pyarrow", "pandas"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Annotations name types of other libraries and types that are not public.
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", ".*")]

# The pages stay plain Markdown, so the order of the site is stated here and added when they are read.
CONTENTS = {
    "docs/index": {
        "Guide": "/README installation clients observability spark /spark/README",
        "Testing": "testing testing-cookbook testing-other-clients spark-testing",
        "From another client": "migrating/pynsq migrating/gnsq migrating/ansq migrating/go-nsq",
        "Broker": "operating conformance",
        "Reference": "reference/README",
        "Project": (
            "architecture states performance simulation fuzzing histories glossary style"
            " decisions/README /CONTRIBUTING /CHANGELOG"
        ),
    },
    "docs/reference/README": {
        "": "producers consumers options errors lookup admin telemetry testing spark",
    },
    "docs/decisions/README": {"": "[0-9]*"},
}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append hidden tables of contents to the text of a page, in place."""
    for caption, pages in CONTENTS.get(page, {}).items():
        heading = f":caption: {caption}\n" if caption else ""
        entries = "\n".join(pages.split())
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n{heading}\n{entries}\n```\n"


def join_sentence(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Undo what napoleon does to a property whose docstring has a colon: it takes the words before it for a type."""
    types = [number for number, line in enumerate(lines) if line.startswith(":type: ")]
    if what == "property" and types:
        beginning = lines.pop(types[0]).removeprefix(":type: ")
        lines[0] = f"{beginning}: {lines[0]}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", join_sentence, priority=600)  # after napoleon, which has 500
