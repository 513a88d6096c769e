"""Tests of ``nsqkit.broker.core.disk.error_text``."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.disk.error_text import error_text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "t.dat"), "No space left on device: t.dat"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("x"), "x"),
    ],
    ids=["file", "no file", "no OSError"],
)
def test_text_has_no_error_number(error: Exception, text: str) -> None:
    assert error_text(error) == text
