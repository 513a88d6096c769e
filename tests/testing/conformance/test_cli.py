from __future__ import annotations

import json
import shlex

import pytest

from nsqkit.__main__ import main as nsqkit
from nsqkit.testing.conformance.cli import main
from nsqkit.testing.conformance.suite import CASES
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, OK_FRAME, encode_response
from tests.pages import ROOT, blocks_of
from tests.testing.conformance.brokers import prepared_broker, right_broker


def test_right_broker_passes(capsys):
    with right_broker() as target:
        assert main([target.tcp_address, "--http", target.http_address, "--only", "names/*"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nsqkit ")
    assert "\nPASS  names/longest-topic " in out
    assert " 0 failed, 0 skipped, in " in out


def test_wrong_broker_fails_with_a_report(capsys):
    identity = encode_response(b'{"version":"0.0.1"}')
    with prepared_broker(identity + OK_FRAME, CLOSE_WAIT_FRAME, OK_FRAME) as target:
        assert main([target.tcp_address, "--only", "handshake/unknown-command", "--timeout", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["version: 0.0.1", 'IDENTIFY: {"version": "0.0.1"}']
    assert lines[4:10] == [
        "FAIL  handshake/unknown-command            An unknown command is refused. (nsqd/protocol_v2.go)",
        "      expected: error b'E_INVALID invalid command HELLO'",
        "      came: response b'CLOSE_WAIT'",
        "      | connection 1: sent b'  V2'",
        r"      | connection 1: sent b'HELLO\n'",
        "      | connection 1: received response b'CLOSE_WAIT'",
    ]
    assert lines[-1].startswith("1 cases: 0 passed, 1 failed, 0 skipped, in ")


def test_report_in_json(capsys):
    with right_broker() as target:
        assert main([target.tcp_address, "--only", "/ping", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"] == {"PASS": 0, "FAIL": 0, "SKIP": 1}
    assert document["cases"][0]["reason"] == "the HTTP address is not given (--http)"


def test_list_needs_no_broker(capsys):
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CASES)
    assert main(["--list", "--only", "sampling/*"]) == 0
    assert capsys.readouterr().out.startswith("sampling/share-of-messages ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "the address of the broker is missing: nsqkit conformance HOST:PORT"),
        (["localhost"], "address 'localhost' is not host:port with a port of 0 to 65535"),
        (["127.0.0.1:1", "--http", "x"], "address 'x' is not host:port with a port of 0 to 65535"),
        (["127.0.0.1:1", "--timeout", "0"], "--timeout is 0.0; allowed are seconds above 0 and up to 60"),
        (["--only", "nope"], "--only is 'nope', which is in no name of a case; --list prints the names"),
        (["127.0.0.1:1"], "cannot connect to 127.0.0.1:1: Connection refused"),
    ],
    ids=["missing", "address", "http", "timeout", "only", "unreachable"],
)
def test_a_broker_that_cannot_be_checked_is_one_sentence(words, problem, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"nsqkit conformance: {problem}\n"


def test_texts_of_the_broker_are_escaped_in_an_error(capsys):
    identity = encode_response(b"{}") + CLOSE_WAIT_FRAME
    with prepared_broker(identity, b"\x1b[2J\n") as target:
        assert main([target.tcp_address, "--http", target.tcp_address, "--timeout", "1"]) == 2
    error = capsys.readouterr().err
    assert error == rf"nsqkit conformance: no HTTP at {target.tcp_address}: BadStatusLine: \x1b[2J\n" + "\n"


def test_unknown_flags_are_refused(capsys):
    assert main(["--nope"]) == 2
    assert capsys.readouterr().err.endswith("nsqkit conformance: error: unrecognized arguments: --nope\n")


def test_help_lists_the_flags(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [flag for flag in ("--http", "--only", "--list", "--json", "--timeout") if flag not in out] == []


def test_commands_of_the_page_run(capsys):
    (block,) = [block for block in blocks_of(ROOT / "docs" / "conformance.md") if block.language == "sh"]
    commands = [shlex.split(line, comments=True) for line in block.text.splitlines()]
    assert len(commands) == 2
    with right_broker() as target:
        addresses = {"127.0.0.1:4150": target.tcp_address, "127.0.0.1:4151": target.http_address}
        for python, flag, module, *words in commands:
            assert (python, flag, module) == ("python", "-m", "nsqkit")
            assert nsqkit([addresses.get(word, word) for word in words]) == 0
    assert " 0 failed" in capsys.readouterr().out
