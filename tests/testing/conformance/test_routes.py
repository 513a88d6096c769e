from __future__ import annotations

import pytest

from nsqkit.testing.conformance import routes
from tests.testing.conformance.brokers import check_subject


@pytest.mark.parametrize("subject", ["HTTP"])
def test_only_a_right_broker_passes(subject: str):
    check_subject(*vars(routes)[subject])
