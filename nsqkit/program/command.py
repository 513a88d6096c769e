"""A command: turns a command line and a configuration file into options, and runs a program with them.

A program that starts nsqd or nsqlookupd can start this instead: flags, version line and exit codes are the same (0 for
help, version and a regular end, 1 for values that are out of range or contradict each other, 2 for an invalid command
line), and an error is one sentence on stderr. A value comes from the command line, else from the file, else from the
defaults.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.flags import (
    UnknownFlag,
    check_limits,
    flag_place,
    key_place,
    parse_document,
    parse_flags,
    unknown_keys,
    usage,
)
from nsqkit.options.option import Kind, Option

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_WORD: Final = re.compile(r"'[^']*'|\w+")
"""A quoted value, or a word."""


COMMAND_FLAGS: Final[Mapping[str, Option]] = {
    "help": Option(flag="help", kind=Kind.BOOL, help="print this text"),
    "h": Option(flag="h", kind=Kind.BOOL, help="print this text"),
    "version": Option(flag="version", kind=Kind.BOOL, help="print the version"),
    "config": Option(flag="config", kind=Kind.STRING, help="path of a configuration file in TOML; flags win over it"),
    "verbose": Option(
        flag="verbose", kind=Kind.BOOL, help="accepted for old scripts' sake, without effect: see log-level"
    ),
    "worker_id": Option(
        flag="worker-id", kind=Kind.BOOL, help="accepted for old scripts' sake, without effect: see node-id"
    ),
}
"""The flags that are not options of the program."""


@attrs.frozen(kw_only=True)
class Command:
    """One command.

    Attributes:
        name: the name that people type.
        options: its options by the names of their fields.
        make: returns the options object for values by name.
        host_defaults: returns the defaults that depend on the host.
        run: runs with the options, and returns the exit code.
        flags: those of COMMAND_FLAGS that it has.
    """

    name: str
    options: Mapping[str, Option]
    make: Callable[..., Any]
    host_defaults: Callable[[], dict[str, Any]]
    run: Callable[[Any], int]
    flags: Mapping[str, Option] = COMMAND_FLAGS

    def main(self, words: Sequence[str]) -> int:
        """Run the command line ``words``, without the command's name, and return its exit code."""
        try:
            given = parse_flags(words, {**self.flags, **self.options})
        except UnknownFlag as error:
            flags = [option.flag for option in (*self.flags.values(), *self.options.values())]
            hint = f'{_nearest(error.flag, flags, "--{}")}"{self.name} --help" lists all flags'
            print(error, f"{self.name}: {hint}", sep="\n", file=sys.stderr)
            return EXIT_USAGE
        except OptionError as error:
            return self._fail(error, EXIT_USAGE)
        command = {name: given.pop(name) for name in self.flags if name in given}
        if command.get("help") or command.get("h"):
            print(usage(self.name, {**self.flags, **self.options}, self.make()), end="")
            return 0
        if command.get("version"):
            from nsqkit.program.version import version_line

            print(version_line(self.name))
            return 0
        try:
            options = self._build(command.get("config", ""), given)
        except OptionError as error:
            return self._fail(error, EXIT_FAILURE)
        return self.run(options)

    def _build(self, config_path: str, given: Mapping[str, Any]) -> Any:
        configured = self._read_config(config_path) if config_path else {}
        for name, value in given.items():
            check_limits(self.options[name], value, flag_place(self.options[name]))
        try:
            return self.make(**{**self.host_defaults(), **configured, **given})
        except OptionError as error:  # options that contradict each other; it has the names of fields
            names = {name: f"--{option.flag}" for name, option in self.options.items()}
            names |= {name: self.options[name].config_name for name in configured.keys() - given.keys()}
            raise OptionError(_WORD.sub(lambda word: names.get(word[0], word[0]), str(error))) from error

    def _read_config(self, path: str) -> dict[str, Any]:
        import tomllib

        try:
            with open(path, "rb") as file:
                document = tomllib.load(file)
            configured = parse_document(document, self.options)
            for name, value in configured.items():
                check_limits(self.options[name], value, key_place(self.options[name]))
            self._warn_of(unknown_keys(document, self.options), path)
            return configured
        except OSError as error:
            raise OptionError(f'cannot read the configuration file "{path}": {error.strerror}') from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OptionError) as error:
            raise OptionError(f'in the configuration file "{path}": {error}') from error

    def _warn_of(self, keys: list[str], path: str) -> None:
        """Warn of unknown keys; nsqd ignores them silently."""
        known = [option.config_name for option in self.options.values()]
        for key in keys:
            hint = _nearest(key, known, '"{}"').rstrip()
            text = f'in the configuration file "{path}": the unknown option "{key}" is ignored'
            print(f"{self.name}: warning: {text}{hint and '; '}{hint}", file=sys.stderr)

    def _fail(self, error: OptionError, code: int) -> int:
        print(f"{self.name}: {error}", file=sys.stderr)
        return code


def _nearest(name: str, known: list[str], form: str) -> str:
    """Return "did you mean ...?" with the most similar of the known names, if one is similar."""
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {form.format(found[0])}? " if found else ""
