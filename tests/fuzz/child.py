"""Fuzzes one target with atheris, in a process of its own: libFuzzer ends the process.

The arguments are the name of the target, and those of libFuzzer.
"""

from __future__ import annotations

import sys

import atheris


def main(name: str, arguments: list[str]) -> None:
    """Run until libFuzzer ends the process."""
    with atheris.instrument_imports(include=["nsqkit"]):
        from tests.fuzz.corpus import load_target

        target = load_target(name)
    from tests.fuzz.harness import check

    atheris.Setup([name, *arguments], lambda data: check(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
