from __future__ import annotations

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import metadata
from tests.fuzz.corpus import CorpusError, minimised, store_inputs, stored_inputs
from tests.fuzz.harness import pack


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.corpus.FOLDER", tmp_path)
    return tmp_path


def test_stored_inputs_are_those_that_were_stored(folder):
    inputs = [b"a", b"\n\r\\", bytes(range(256)), b"\xf5\xf5"]
    store_inputs("metadata", [*inputs, b"a", b""], folder)
    assert sorted(stored_inputs("metadata", folder)) == sorted(inputs)
    assert stored_inputs("documents", folder) == []


@pytest.mark.parametrize("line", ["\\x0", "\\u20ac", "\\N{no}"])
def test_a_line_that_is_no_input_is_refused(folder, line):
    (folder / "metadata.txt").write_text(f"a\n{line}\n", encoding="ascii")
    with pytest.raises(CorpusError, match=r"line 2 of .*metadata\.txt is no input: "):
        stored_inputs("metadata", folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "there is no target 'nothing'; the targets are broker_session, broker_layers,"),
        (["--replay", "file"], "--replay and --add need the name of one target"),
        (["metadata", "--replay", "missing"], "No such file or directory: 'missing'"),
        (["metadata"], "atheris is not installed"),
        (["metadata", "--minutes", "-1"], "a limit is a number above 0"),
        (["metadata", "--inputs", "-1"], "a limit is a number above 0"),
    ],
)
def test_wrong_commands_are_refused_in_one_sentence(folder, capsys, monkeypatch, words, sentence):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.main(words) == 2
    assert sentence in capsys.readouterr().err


def test_an_input_is_replayed_and_added(folder, capsys):
    (folder / "found").write_bytes(pack(b"null"))
    assert command.main(["metadata", "--replay", "found"]) == 0
    assert capsys.readouterr().out == "no failure\n"
    assert command.main(["metadata", "--add", "found"]) == 0
    assert stored_inputs("metadata", folder) == [pack(b"null")]


def test_inputs_that_reach_nothing_more_are_left_out():
    kept = minimised(metadata, [pack(b"null"), pack(b"null "), pack(b'{"topics":[{"name":"t"}]}')])
    assert kept == [pack(b"null"), pack(b'{"topics":[{"name":"t"}]}')]


def test_the_figures_and_the_crash_of_a_run_are_printed():
    result = command.Result("metadata", 1000, 2.0, 7, [".fuzz/metadata-crash-1"], 77)
    assert str(result).splitlines() == [
        "metadata: 1000 inputs, 500 a second of CPU, 7 in the corpus, 1 crashes",
        "  python -m tests.fuzz metadata --replay .fuzz/metadata-crash-1",
    ]
