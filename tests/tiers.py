"""Cases in two tiers: a few in `make test`, all of them in `make test-more`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(cases: Iterable[Any], count: int) -> list[Any]:
    """Parameters of which `make test` runs the first `count`; `make test-more` runs the others."""
    return [case if number < count else pytest.param(case, marks=pytest.mark.more) for number, case in enumerate(cases)]
