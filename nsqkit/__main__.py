"""The command ``nsqkit``, also ``python -m nsqkit``: its first word is the name of a command, which alone is imported.

The docstring of each command's function is its line in the help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from nsqkit import __version__


def _nsqd(words: Sequence[str]) -> int:
    """Run a broker; takes the flags of nsqd."""
    from nsqkit.broker.cli import main

    return main(words)


def _nsqlookupd(words: Sequence[str]) -> int:
    """Run a directory of brokers; takes the flags of nsqlookupd."""
    from nsqkit.lookupd.cli import main

    return main(words)


def _conformance(words: Sequence[str]) -> int:
    """Compare a broker with nsqd; takes its address."""
    from nsqkit.testing.conformance.cli import main

    return main(words)


COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "nsqd": _nsqd,
    "nsqlookupd": _nsqlookupd,
    "conformance": _conformance,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that the first word names, and return its exit code, or 2 if there is no such command.

    It is also 2 if the program that reads the output has ended, as ``head`` does.

    Args:
        words: the command line without the program's name; by default that of this process.
    """
    try:
        code = _run(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again when it ends
        return 2
    return code


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else ""
    if name in COMMANDS:
        return COMMANDS[name](words[1:])
    if name in {"-h", "-help", "--help"}:
        print(_usage(), end="")
        return 0
    if name in {"-version", "--version"}:
        print(f"nsqkit {__version__}")
        return 0
    problem = f'unknown command "{name}"' if name else "a command is missing"
    print(f"nsqkit: {problem}; allowed is {', '.join(COMMANDS)}, --help or --version", file=sys.stderr)
    return 2


def _usage() -> str:
    lines = [f"  {name:<12}{command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join(["Usage: nsqkit COMMAND [FLAGS]", "", *lines, "", "nsqkit COMMAND --help lists its flags.\n"])


if __name__ == "__main__":
    sys.exit(main())
