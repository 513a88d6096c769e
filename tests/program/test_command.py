from __future__ import annotations

import attrs
import pytest

from nsqkit.options.fields import flags_of, integer
from nsqkit.program.command import COMMAND_FLAGS, Command
from nsqkit.program.version import version_line


@attrs.frozen(kw_only=True)
class Options:
    size: int = integer(5, "how big", high=9)


ran: list[Options] = []


def run(options: Options) -> int:
    ran.append(options)
    return 7


COMMAND = Command(
    name="program",
    options=flags_of(Options),
    make=Options,
    host_defaults=lambda: {"size": 6},
    run=run,
    flags={name: COMMAND_FLAGS[name] for name in ("help", "h", "version", "config")},
)


@pytest.fixture(autouse=True)
def _forget():
    ran.clear()


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path):
    path = tmp_path / "program.cfg"
    path.write_text("size = 8")
    assert COMMAND.main([]) == 7
    assert COMMAND.main([f"-config={path}"]) == 7
    assert COMMAND.main([f"-config={path}", "-size", "9"]) == 7
    assert [options.size for options in ran] == [6, 8, 9]


def test_help_and_version_run_nothing(capsys):
    assert COMMAND.main(["-h"]) == 0
    assert COMMAND.main(["-version"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage of program:\n")
    assert "-size int\n" in out
    assert out.endswith(f"{version_line('program')}\n")
    assert not ran


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ["-worker-id"],
            2,
            'flag provided but not defined: -worker-id\nprogram: "program --help" lists all flags\n',
        ),
        (["-size=x"], 2, 'program: invalid value "x" for flag --size'),
        (["-size=10"], 1, 'program: invalid value "10" for flag --size: allowed is an integer from 0 to 9'),
        (["-config=nowhere"], 1, 'program: cannot read the configuration file "nowhere": '),
    ],
)
def test_errors_are_written_to_stderr(words, code, sentence, capsys):
    assert COMMAND.main(words) == code
    assert capsys.readouterr().err.startswith(sentence)
    assert not ran
