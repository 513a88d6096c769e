"""The pages of docs/reference list every public name once, and no name that does not exist."""

from __future__ import annotations

import importlib
import re
from collections import Counter

import pytest

from tests.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
LISTED = [
    name
    for page in sorted(REFERENCE.glob("*.md"))
    for name in re.findall(r"^\.\. auto(?!module)\w+:: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
]

MODULES = [
    "nsqkit",
    "nsqkit.admin",
    "nsqkit.consumer",
    "nsqkit.errors",
    "nsqkit.lookup",
    "nsqkit.producer",
    "nsqkit.spark",
    "nsqkit.spark.testing",
    "nsqkit.telemetry.opentelemetry",
    "nsqkit.telemetry.prometheus",
    "nsqkit.testing",
]


def resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_listed(name: str):
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if not each.startswith("_") and isinstance(value, type) and value.__module__ == name
    ]
    listed = [resolve(each) for each in LISTED]
    missing = [each for each in public if not any(getattr(module, each) is item for item in listed)]
    assert public
    assert not missing


def test_no_name_is_listed_twice():
    assert [name for name, count in Counter(LISTED).items() if count > 1] == []
