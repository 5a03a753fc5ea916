"""Secrets at rest: private files and directories, and what another user could have planted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.server.files.secret_files import make_private_folder, write_private
from penstock.server.files.yaml_tree import ConfigError


def test_a_private_file_replaces_a_planted_link_and_leaves_its_target(tmp_path: Path) -> None:
    victim, secret = tmp_path / "victim", tmp_path / "operator.token"
    victim.write_text("mine")
    secret.symlink_to(victim)
    write_private(secret, b"secret")
    assert victim.read_text() == "mine" and not secret.is_symlink()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["operator.token", "victim"], "no draft is left"


def test_a_new_directory_is_private_and_an_own_one_is_accepted(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "run")
    make_private_folder(tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    """Another user could plant `console.key` there, and with it sign in to the console."""
    planted = tmp_path / "elsewhere"
    planted.mkdir()
    planted.chmod(mode)
    (tmp_path / "run").symlink_to(planted)
    with pytest.raises(ConfigError, match="other users may write"):
        make_private_folder(tmp_path / "run")


def test_a_link_to_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    other = next((path for path in ("/", "/proc/1") if os.stat(path).st_uid != os.geteuid()), None)
    if other is None:
        other = tmp_path / "theirs"
        other.mkdir()
        os.chown(other, 65534, 65534)
    (tmp_path / "run").symlink_to(other)
    with pytest.raises(ConfigError, match="belongs to another user"):
        make_private_folder(tmp_path / "run")
