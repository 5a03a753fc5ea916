"""Problems of a file that people write: all of them at once, each with its path and its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.server.files import yaml_tree


class ConfigError(Exception):
    """The config cannot be used; holds every problem, not only the first."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_text(path: Path) -> str:
    """A file that people write, whole; ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4 * yaml_tree.TEXT_MAX + 1).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"cannot read `{path}`: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"`{path}` is not UTF-8 text"]) from error


def placed(where: yaml_tree.Path, message: str, lines: Mapping[yaml_tree.Path, int]) -> str:
    """One problem as one line, with the line of the nearest key that the file really has."""
    if not where:
        return message
    known = [lines[where[:length]] for length in range(len(where), 0, -1) if where[:length] in lines]
    return f"{yaml_tree.show(where)}: {message}" + (f" (line {known[0]})" if known else "")
