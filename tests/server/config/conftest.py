"""Reading a file of the config, for the tests of this folder and of those below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.config.load import ConfigError, load


@pytest.fixture
def loader() -> tuple[str, Callable[..., Any]]:
    """The name of the file and the function that loads it."""
    return "penstock.yaml", load


@pytest.fixture
def read(tmp_path: Path, loader: tuple[str, Callable[..., Any]]) -> Callable[..., Any]:
    name, load_file = loader

    def read(text: str, **env: str) -> Any:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_file(path, env)

    return read


@pytest.fixture
def problems(read: Callable[..., Any], loader: tuple[str, Callable[..., Any]]) -> Callable[..., list[str]]:
    """What is wrong with a file, without its name."""

    def problems(text: str, **env: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, **env)
        return [problem.partition(f"{loader[0]}`: ")[2] or problem for problem in caught.value.errors]

    return problems
