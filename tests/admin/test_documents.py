from __future__ import annotations

import attrs
import pytest

from nsqkit.admin.documents import part, parts, read


@attrs.frozen
class Leaf:
    name: str = ""


@attrs.frozen
class Tree:
    count: int = 0
    ratio: float = 0.0
    good: bool = False
    name: str = ""
    leaf: Leaf | None = attrs.field(default=None, metadata=part(Leaf))
    leaves: tuple[Leaf, ...] = attrs.field(default=(), metadata=parts(Leaf))


def test_all_keys_are_read():
    document = {
        "count": 1,
        "ratio": 0.5,
        "good": True,
        "name": "n",
        "leaf": {"name": "a"},
        "leaves": [{"name": "b"}, {}],
    }
    assert read(Tree, document) == Tree(1, 0.5, True, "n", Leaf("a"), (Leaf("b"), Leaf()))


def test_missing_null_and_unknown_keys_are_accepted():
    assert read(Tree, {}) == Tree()
    assert read(Tree, dict.fromkeys(["count", "good", "leaf", "leaves"]) | {"new": [1]}) == Tree()


def test_an_integer_is_accepted_for_a_float():
    assert read(Tree, {"ratio": 1}).ratio == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", "1"),
        ("count", 1.0),
        ("count", True),
        ("ratio", False),
        ("good", 1),
        ("name", 1),
        ("leaf", []),
        ("leaf", "x"),
        ("leaves", {}),
        ("leaves", ["x"]),
        ("leaves", [None]),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field} is of a kind that cannot be understood, "):
        read(Tree, {field: value})


def test_nested_values_are_checked_too():
    with pytest.raises(ValueError, match=r"^name is of a kind"):
        read(Tree, {"leaves": [{"name": "a"}, {"name": 1}]})
