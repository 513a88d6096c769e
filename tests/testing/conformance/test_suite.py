from __future__ import annotations

import re

from nsqkit.testing.conformance.suite import CASES, select


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 150
    assert [name for name in names if not re.fullmatch(r"[a-z]+/[a-z0-9-]+", name)] == []


def test_every_case_has_a_rule_and_a_file_of_nsqd():
    assert [case.name for case in CASES if not re.fullmatch(r"[A-Z#].*[^.]\.", case.rule)] == []
    assert {case.source.partition("/")[0] for case in CASES} == {"nsqd", "internal"}
    assert all(case.source.endswith(".go") for case in CASES)


def test_patterns_select_cases():
    assert [case.name for case in select("handshake/nop")] == ["handshake/nop"]
    assert {case.name.partition("/")[0] for case in select("touch/*")} == {"touch"}
    assert select("no-such-case") == []
