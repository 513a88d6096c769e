"""What objects of nsqkit keep: the bytes, and the elements of containers, that can be reached from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

CONTAINERS = list | tuple | set | deque | dict


def kept_size(*roots: object) -> int:
    """Return the bytes that objects of nsqkit keep, in attributes and in containers; each object counts once."""
    return sum(len(each) for each in _reached(roots) if isinstance(each, bytes | bytearray))


def kept_count(*roots: object) -> int:
    """Return the elements of all containers that objects of nsqkit keep."""
    return sum(len(each) for each in _reached(roots) if isinstance(each, CONTAINERS))


def _reached(roots: tuple[object, ...]) -> Iterator[object]:
    seen, todo = set(), list(roots)
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, bytes | bytearray):
            yield each
        elif isinstance(each, CONTAINERS):
            yield each
            todo += [*each.keys(), *each.values()] if isinstance(each, dict) else each
        elif type(each).__module__.startswith("nsqkit."):
            todo += _attributes(each)


def _attributes(each: object) -> Iterator[object]:
    yield from getattr(each, "__dict__", {}).values()
    for kind in type(each).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(each, name):
                yield getattr(each, name)
