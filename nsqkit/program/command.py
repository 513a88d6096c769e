"""A command: a command line and a configuration file become options, and something runs with them.

The rule it guards: a program that starts nsqd or nsqlookupd can start this instead. Flags, version line and exit codes
are theirs (0 for help, version and a clean end, 1 for values that cannot be used together or out of range, 2 for a
command line that cannot be read), and what is wrong is one sentence on stderr.

How to read it: ``Command.main`` is the whole story; a value comes from the command line, else the file, else the
default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.flags import UnknownFlag, parse_document, parse_flags, usage
from nsqkit.options.option import Kind, Option

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


def _command_flag(flag: str, kind: Kind, text: str) -> Option:
    return Option(flag=flag, config_name="", kind=kind, help=text)


COMMAND_FLAGS: Final[Mapping[str, Option]] = {
    "help": _command_flag("help", Kind.BOOL, "print this text"),
    "h": _command_flag("h", Kind.BOOL, "print this text"),
    "version": _command_flag("version", Kind.BOOL, "print the version"),
    "config": _command_flag("config", Kind.STRING, "path of a configuration file in TOML; flags win over it"),
    "verbose": _command_flag(
        "verbose", Kind.BOOL, "accepted for old scripts' sake, without effect: see log-level"
    ),
    "worker_id": _command_flag(
        "worker-id", Kind.BOOL, "accepted for old scripts' sake, without effect: see node-id"
    ),
}
"""The flags that are no options of what runs."""


@attrs.frozen(kw_only=True)
class Command:
    """One command.

    Attributes:
        name: as people type it.
        options: its options by the name of their fields.
        make: makes the options object from values by name.
        host_defaults: returns the defaults that depend on the host.
        version_line: returns what ``--version`` prints.
        run: runs with the options, and returns the exit code.
        flags: those of COMMAND_FLAGS that it has.
    """

    name: str
    options: Mapping[str, Option]
    make: Callable[..., Any]
    host_defaults: Callable[[], dict[str, Any]]
    version_line: Callable[[], str]
    run: Callable[[Any], int]
    flags: Mapping[str, Option] = COMMAND_FLAGS

    def main(self, words: Sequence[str]) -> int:
        """Run the command and return its exit code.

        Args:
            words: the command line after the command's name.
        """
        try:
            given = parse_flags(words, {**self.flags, **self.options})
        except UnknownFlag as error:
            print(error, self._usage(), sep="\n", end="", file=sys.stderr)
            return EXIT_USAGE
        except OptionError as error:
            return self._fail(error, EXIT_USAGE)
        command = {name: given.pop(name) for name in self.flags if name in given}
        if command.get("help") or command.get("h"):
            print(self._usage(), end="")
            return 0
        if command.get("version"):
            print(self.version_line())
            return 0
        try:
            options = self._build(command.get("config", ""), given)
        except OptionError as error:
            return self._fail(error, EXIT_FAILURE)
        return self.run(options)

    def _build(self, config_path: str, given: Mapping[str, Any]) -> Any:
        values = self.host_defaults()
        if config_path:
            values.update(self._read_config(config_path))
        values.update(given)
        return self.make(**values)

    def _read_config(self, path: str) -> dict[str, Any]:
        import tomllib

        try:
            with open(path, "rb") as file:
                return parse_document(tomllib.load(file), self.options)
        except OSError as error:
            raise OptionError(f'cannot read the configuration file "{path}": {error.strerror}') from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OptionError) as error:
            raise OptionError(f'in the configuration file "{path}": {error}') from error

    def _usage(self) -> str:
        return usage(self.name, {**self.flags, **self.options}, self.make())

    def _fail(self, error: OptionError, code: int) -> int:
        print(f"{self.name}: {error}", file=sys.stderr)
        return code
