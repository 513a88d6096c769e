"""The command ``nsqd``: a command line and a configuration file become options, and a broker runs with them.

The rule it guards: a program that starts nsqd can start this instead. Flags, version line and exit codes are
nsqd's (0 for help, version and a clean end, 1 for values that cannot be used together or out of range, 2 for a
command line that cannot be read), and what is wrong is one sentence on stderr. It also guards the start: only what
is needed to accept a connection is imported before the broker runs.

How to read it: ``main`` is the whole story; a value comes from the command line, else the file, else the default.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nsqkit.broker.core.option import Kind, Option
from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id
from nsqkit.broker.flags import UnknownFlag, parse_document, parse_flags, usage
from nsqkit.errors import OptionError

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


def _command_flag(flag: str, kind: Kind, text: str) -> Option:
    return Option(flag=flag, config_name="", kind=kind, help=text)


COMMAND_FLAGS: Final[Mapping[str, Option]] = {
    "help": _command_flag("help", Kind.BOOL, "print this text"),
    "h": _command_flag("h", Kind.BOOL, "print this text"),
    "version": _command_flag("version", Kind.BOOL, "print the version"),
    "config": _command_flag("config", Kind.STRING, "path of a configuration file in TOML; flags win over it"),
    "verbose": _command_flag("verbose", Kind.BOOL, "accepted for nsqd's sake, without effect: see log-level"),
    "worker_id": _command_flag(
        "worker-id", Kind.BOOL, "accepted for nsqd's sake, without effect: see node-id"
    ),
}
"""The flags that are no options of the broker."""

FLAGS: Final[Mapping[str, Option]] = {**COMMAND_FLAGS, **OPTIONS}


def main(words: Sequence[str]) -> int:
    """Run the command and return its exit code.

    Args:
        words: the command line after ``nsqd``.
    """
    try:
        given = parse_flags(words, FLAGS)
    except UnknownFlag as error:
        print(error, _usage(), sep="\n", end="", file=sys.stderr)
        return EXIT_USAGE
    except OptionError as error:
        return _fail(error, EXIT_USAGE)
    command = {name: given.pop(name) for name in COMMAND_FLAGS if name in given}
    if command.get("help") or command.get("h"):
        print(_usage(), end="")
        return 0
    if command.get("version"):
        from nsqkit.broker.version import version_line

        print(version_line())
        return 0
    try:
        options = _build(command.get("config", ""), given)
    except OptionError as error:
        return _fail(error, EXIT_FAILURE)
    from nsqkit.broker.main import run

    return run(options)


def _build(config_path: str, given: Mapping[str, Any]) -> BrokerOptions:
    values = _host_defaults()
    if config_path:
        values.update(_read_config(config_path))
    values.update(given)
    return BrokerOptions(**values)


def _host_defaults() -> dict[str, Any]:
    hostname = socket.gethostname()
    return {"node_id": default_node_id(hostname), "broadcast_address": hostname}


def _read_config(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return parse_document(tomllib.load(file), OPTIONS)
    except OSError as error:
        raise OptionError(f'cannot read the configuration file "{path}": {error.strerror}') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OptionError) as error:
        raise OptionError(f'in the configuration file "{path}": {error}') from error


def _usage() -> str:
    return usage("nsqd", FLAGS, BrokerOptions())


def _fail(error: OptionError, code: int) -> int:
    print(f"nsqd: {error}", file=sys.stderr)
    return code
