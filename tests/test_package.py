"""What the package promises to whoever installs it."""

from __future__ import annotations

import warnings
from importlib.resources import files

import pytest

import nsqkit
from nsqkit import errors
from nsqkit.client import serializers
from nsqkit.consumer.giving_up import DeadLetter


@pytest.mark.parametrize("module", [errors, serializers], ids=["errors", "serializers"])
def test_all_errors_and_serializers_can_be_imported_from_it(module):
    assert set(module.__all__) <= set(nsqkit.__all__)
    assert all(getattr(nsqkit, name) is getattr(module, name) for name in module.__all__)


def test_and_so_can_all_that_it_lists():
    assert nsqkit.DeadLetter is DeadLetter
    assert all(hasattr(nsqkit, name) for name in nsqkit.__all__)
    assert not hasattr(nsqkit, "Nothing")


def test_type_checkers_look_into_it():
    assert (files("nsqkit") / "py.typed").is_file()


def test_what_a_python_deprecates_fails_the_tests():
    with pytest.raises(DeprecationWarning, match="gone in the next version"):
        warnings.warn("gone in the next version", DeprecationWarning, stacklevel=1)
