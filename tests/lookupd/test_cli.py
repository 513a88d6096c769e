from __future__ import annotations

import socket
import subprocess
import sys
import types

import pytest

from nsqkit.lookupd import cli
from nsqkit.lookupd.options import OPTIONS, LookupdOptions


@pytest.fixture
def started(monkeypatch):
    """The options of every nsqlookupd that the command would have run; each run ends with code 7."""
    options: list[LookupdOptions] = []
    program = types.ModuleType("nsqkit.lookupd.main")

    def run(given: LookupdOptions) -> int:
        options.append(given)
        return 7

    vars(program)["run"] = run
    monkeypatch.setitem(sys.modules, "nsqkit.lookupd.main", program)
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-the-test")
    return options


def test_without_flags_it_runs_with_the_defaults_of_this_host(started):
    assert cli.main([]) == 7
    assert started == [LookupdOptions(broadcast_address="host-of-the-test")]


def test_flags_override_the_configuration_file(started, tmp_path):
    path = tmp_path / "nsqlookupd.cfg"
    path.write_text('tcp_address = "a:1"\nbroadcast_address = "b"\ninactive_producer_timeout = "5m"\n')
    cli.main([f"-config={path}", "--tcp-address=c:2", "-tombstone-lifetime", "30s", "--verbose"])
    assert started == [
        LookupdOptions(
            tcp_address="c:2",
            broadcast_address="b",
            inactive_producer_timeout_ns=300 * 10**9,
            tombstone_lifetime_ns=30 * 10**9,
        )
    ]


def test_the_version_is_printed(started, capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nsqlookupd v1.3.0 (built w/go")
    assert not started


def test_help_lists_every_flag_of_nsqlookupd_and_none_of_nsqds(started, capsys):
    assert cli.main(["-help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage of nsqlookupd:\n")
    for option in OPTIONS.values():
        assert f"\n  -{option.flag} " in out
    assert "-worker-id" not in out


@pytest.mark.parametrize("flag", ["--worker-id=1", "--data-path=."])
def test_a_flag_of_nsqd_is_none_of_nsqlookupd(flag, started, capsys):
    assert cli.main([flag]) == 2
    assert capsys.readouterr().err.startswith("flag provided but not defined: -")


def test_reading_a_command_line_imports_nothing_slow():
    program = (
        "import sys, nsqkit; before = set(sys.modules); from nsqkit.lookupd import cli; "
        "print(*(set(sys.modules) - before) & "
        "{'anyio', 'argparse', 'asyncio', 'h11', 'json', 'ssl', 'tomllib', 'nsqkit.lookupd.main'})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
