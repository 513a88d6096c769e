"""The package as installed by users."""

from __future__ import annotations

import tomllib
import warnings
from importlib.resources import files
from pathlib import Path

import pytest

import nsqkit
from nsqkit import errors
from nsqkit.client import serializers
from nsqkit.consumer.dead_letter import DeadLetter

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("module", [errors, serializers], ids=["errors", "serializers"])
def test_errors_and_serializers_can_be_imported(module):
    assert set(module.__all__) <= set(nsqkit.__all__)
    assert all(getattr(nsqkit, name) is getattr(module, name) for name in module.__all__)


def test_all_listed_names_can_be_imported():
    assert nsqkit.DeadLetter is DeadLetter
    assert all(hasattr(nsqkit, name) for name in nsqkit.__all__)
    assert not hasattr(nsqkit, "Nothing")


def test_declared_pythons_are_the_tested_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [text.rpartition(" ")[2] for text in project["classifiers"] if ":: Python :: 3." in text]
    assert project["requires-python"] == f">={versions[0]}"
    tried = ",".join(version.replace(".", "") for version in versions)
    assert f"[testenv:py{{,{tried}}}]" in (ROOT / "tox.ini").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"-e {','.join(f'py{version}' for version in tried.split(','))} " in makefile
    assert all(f"python{version}" in makefile for version in versions)


def test_package_is_typed():
    assert (files("nsqkit") / "py.typed").is_file()


def test_wheel_has_the_module_by_which_spark_finds_the_data_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["nsqkit", "pyspark_nsq.py"]
    assert all((ROOT / name).exists() for name in wheel["only-include"])


def test_deprecation_warnings_fail_the_tests():
    with pytest.raises(DeprecationWarning, match="gone in the next version"):
        warnings.warn("gone in the next version", DeprecationWarning, stacklevel=1)
