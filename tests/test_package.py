"""What the package promises to whoever installs it."""

from __future__ import annotations

import warnings
from importlib.resources import files

import pytest


def test_type_checkers_look_into_it():
    assert (files("nsqkit") / "py.typed").is_file()


def test_what_a_python_deprecates_fails_the_tests():
    with pytest.raises(DeprecationWarning, match="gone in the next version"):
        warnings.warn("gone in the next version", DeprecationWarning, stacklevel=1)
