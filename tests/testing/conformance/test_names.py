from __future__ import annotations

import pytest

from nsqkit.testing.conformance import names
from tests.testing.conformance.brokers import check_subject


@pytest.mark.parametrize("subject", ["NAMES"])
def test_only_a_right_broker_passes(subject: str):
    check_subject(*vars(names)[subject])
