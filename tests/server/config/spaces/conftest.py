"""The tests of this folder read the file of a space."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.server.config.spaces.space_yaml import LoadedSpace, load_space


@pytest.fixture
def loader() -> tuple[str, Callable[..., LoadedSpace]]:
    return "space.yaml", load_space
