"""Tests of the check that the documentation site loads nothing from other servers."""

from __future__ import annotations

import pytest

from tests.site import loaded_by_text, loaded_from_elsewhere

URL = "https://example.com/x"


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        (f'<script src="{URL}"></script>', ".html"),
        (f'<link rel="stylesheet" href="{URL}">', ".html"),
        (f'<img alt="passing" src="{URL}">', ".html"),
        (f'<p style="background: url({URL})">', ".html"),
        (f"<style>@font-face {{src: url('{URL}')}}</style>", ".html"),
        (f'@import "{URL}";', ".css"),
        (f"a {{background: url({URL})}}", ".css"),
        (f'fetch("{URL}")', ".js"),
        (f'element.src = "{URL}"', ".js"),
    ],
)
def test_loaded_resources_are_found(text: str, suffix: str):
    assert loaded_by_text(text, suffix) == [URL]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        (f'<a href="{URL}">a link</a>', ".html"),
        (f'<link rel="canonical" href="{URL}">', ".html"),
        ('<script src="_static/site.js"></script>', ".html"),
        (f"/* from {URL} */ a {{background: url(a.svg)}}", ".css"),
        (f"// see {URL}", ".js"),
    ],
)
def test_links_and_own_files_are_allowed(text: str, suffix: str):
    assert not loaded_by_text(text, suffix)


def test_all_files_below_a_folder_are_read(tmp_path):
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "site.css").write_text(f"a {{background: url({URL})}}", encoding="utf-8")
    (tmp_path / "index.html").write_text("<p>nothing</p>", encoding="utf-8")
    assert list(loaded_from_elsewhere(tmp_path)) == [f"static/site.css loads {URL}"]
