from __future__ import annotations

import pytest

from nsqkit.testing.conformance import answering
from tests.testing.conformance.brokers import check_subject


@pytest.mark.parametrize("subject", ["FIN", "REQ", "TOUCH", "TIMEOUT"])
def test_only_a_right_broker_passes(subject: str):
    check_subject(*vars(answering)[subject])
