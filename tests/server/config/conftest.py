"""Reading a config file, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.config.load import Config, ConfigError, load

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, **env: str) -> Config:
        path = tmp_path / "penstock.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, env)

    return read


@pytest.fixture
def problems(read: Read) -> Callable[..., list[str]]:
    def problems(text: str, **env: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, **env)
        return caught.value.errors

    return problems
