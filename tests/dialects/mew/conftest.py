"""A gateway with one space, for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.dialects.mew.driving import GatewayDriver


@pytest.fixture
def driver() -> GatewayDriver:
    return GatewayDriver()
