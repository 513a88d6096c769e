"""Lists what the pages of a built site load from other servers: ``python -m tests.site FOLDER``.

The documentation must work without a network and must not report its readers to anyone. Links to other sites are
allowed; scripts, styles, fonts and images from other sites are not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

# Tag -> its attributes whose URL a browser loads without a click.
LOADING = {
    "audio": {"src"},
    "embed": {"src"},
    "iframe": {"src"},
    "image": {"href"},
    "img": {"src", "srcset"},
    "input": {"src"},
    "link": {"href"},
    "object": {"data"},
    "script": {"src"},
    "source": {"src", "srcset"},
    "use": {"href"},
    "video": {"src", "poster"},
}

# A <link> with one of these values of `rel` states a relation and loads nothing.
RELATIONS = {"author", "canonical", "help", "index", "license", "next", "prev", "search"}

ELSEWHERE = r"(?:https?:)?//[^\s\"')]+"
IN_STYLE = re.compile(rf"(?:url\(\s*[\"']?|@import\s+[\"'])({ELSEWHERE})")
IN_SCRIPT = re.compile(rf"(?:\.src\s*=|\bfetch\(|\bimport(?:Scripts)?\()\s*[\"']({ELSEWHERE})")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._element = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element = tag
        values = {name: value or "" for name, value in attrs}
        self.found += IN_STYLE.findall(values.get("style", ""))
        if tag == "link" and values.get("rel") in RELATIONS:
            return
        loaded = [values[name].strip() for name in LOADING.get(tag, set()) & set(values)]
        self.found += [url for url in loaded if re.match(ELSEWHERE, url)]

    def handle_data(self, data: str) -> None:
        if self._element in {"style", "script"}:
            self.found += loaded_by_text(data, f".{'css' if self._element == 'style' else 'js'}")


def loaded_by_text(text: str, suffix: str) -> list[str]:
    """Return the URLs of other servers that a file loads; ``suffix`` states what kind of file it is."""
    if suffix == ".html":
        page = _Page()
        page.feed(text)
        return page.found
    return {".css": IN_STYLE, ".svg": IN_STYLE, ".js": IN_SCRIPT}[suffix].findall(text)


def loaded_from_elsewhere(folder: Path) -> Iterator[str]:
    """Yield a line for each URL of another server that a file below ``folder`` loads."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css", ".svg", ".js"}:
            for url in loaded_by_text(path.read_text(encoding="utf-8"), path.suffix):
                yield f"{path.relative_to(folder)} loads {url}"


def main() -> None:
    folder = Path(sys.argv[1])
    pages = len(list(folder.rglob("*.html")))
    if found := list(loaded_from_elsewhere(folder)):
        sys.exit("\n".join(found))
    if not pages:
        sys.exit(f"{folder} has no pages")
    print(f"{pages} pages in {folder}: none loads anything from another server")


if __name__ == "__main__":
    main()
