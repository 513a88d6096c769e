"""What the package promises to whoever installs it."""

from __future__ import annotations

from importlib.resources import files


def test_type_checkers_look_into_it():
    assert (files("nsqkit") / "py.typed").is_file()
