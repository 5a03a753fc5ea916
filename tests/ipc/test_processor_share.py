"""Children of the server yield the processor, though they have sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.ipc.processor_share import GROUP
from tests.server_process import environment

SCRIPT = """
import os
from penstock.ipc.processor_share import GROUP, yield_processor
yield_processor(7)
print(os.nice(0), GROUP.read_text() if GROUP.exists() else "")
"""


def nice_after(*, has_session: bool) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(), start_new_session=has_session
    ).stdout
    own, _, group = said.strip().partition(" ")
    return int(own), group.rpartition(" ")[2]


def test_a_child_in_a_session_of_its_own_lowers_the_share_of_its_group() -> None:
    own, group = nice_after(has_session=True)
    assert own == min(os.nice(0) + 7, 19)
    # The system accepts ten changes a second of users without rights.
    assert group in ("7", "") or any(nice_after(has_session=True)[1] == "7" for _ in range(50))


@pytest.mark.skipif(not GROUP.exists(), reason="this system has no groups for scheduling")
def test_a_child_in_the_session_of_its_parent_leaves_the_group_alone() -> None:
    before = Path(f"/proc/{os.getpid()}/autogroup").read_text()
    nice_after(has_session=False)
    assert Path(f"/proc/{os.getpid()}/autogroup").read_text() == before
