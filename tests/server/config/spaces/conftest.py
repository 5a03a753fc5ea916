"""Reading the file of a space, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.config.load import ConfigError
from penstock.server.config.spaces.space_yaml import LoadedSpace, load_space

Read = Callable[..., LoadedSpace]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, **env: str) -> LoadedSpace:
        path = tmp_path / "space.yaml"
        path.write_text(text, encoding="utf-8")
        return load_space(path, env)

    return read


@pytest.fixture
def problems(read: Read) -> Callable[..., list[str]]:
    def problems(text: str, **env: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, **env)
        return [problem.partition("space.yaml`: ")[2] or problem for problem in caught.value.errors]

    return problems
