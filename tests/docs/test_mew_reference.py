"""`docs/reference/mew.md` names exactly the errors, kinds, limits, close codes and journal rows of spaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.core.limits import Limits
from penstock.dialects.mew import join, state
from penstock.dialects.mew.accept import ACTS
from penstock.server.config.spaces.space_yaml import load_space
from tests.paths import ROOT

TEXT = (ROOT / "docs/reference/mew.md").read_text()
SOURCES = [
    *sorted((ROOT / "src/penstock/dialects/mew").glob("*.py")),
    *sorted((ROOT / "src/penstock/server/spaces").glob("*.py")),
]
CODE = "\n".join(path.read_text() for path in SOURCES)
OBSERVATIONS = {"join", "leave", "frame", "frame_counts"}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def firsts(text: str) -> list[str]:
    """What the first cells of a section's tables name."""
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.promise(
    "Documentation of spaces", "the reference names every error, kind, limit, close code and row of spaces"
)
def test_every_error_is_listed() -> None:
    raised = set(re.findall(r'MewRefusal\(\s*"(\w+)"', CODE)) | set(re.findall(r'return cls\("(\w+)"', CODE))
    assert len(raised) > 25, "the search has lost its way"
    assert set(firsts(section("Errors"))) == raised


@pytest.mark.promise(
    "Documentation of spaces", "the reference names every error, kind, limit, close code and row of spaces"
)
def test_every_kind_that_is_acted_upon_is_listed() -> None:
    assert set(ACTS) <= set(firsts(section("Kinds")))
    said = set(re.findall(r'"((?:system|stream|space)/[a-z-]+)"', CODE))
    assert said <= set(re.findall(r"`((?:system|stream|space)/[a-z-]+)`", TEXT))


@pytest.mark.promise(
    "Documentation of spaces", "the reference names every error, kind, limit, close code and row of spaces"
)
def test_every_limit_of_spaces_is_listed_and_every_listed_one_is_a_limit() -> None:
    used = set(re.findall(r"\blimits\.([a-z_]+)\b", CODE)) - {"space"}
    listed = set(firsts(section("Limits")))
    assert used & set(Limits.__struct_fields__) <= listed
    assert listed <= set(Limits.__struct_fields__)
    assert set(re.findall(r"`limits\.([a-z_]+)`", TEXT)) <= listed


@pytest.mark.promise(
    "Documentation of spaces", "the reference names every error, kind, limit, close code and row of spaces"
)
def test_every_close_code_of_spaces_is_listed() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d{4}) \|", section("Connecting"), re.M)}
    assert {join.TAKEN_OVER, join.KICKED, join.SLOW} <= listed
    assert {int(code) for code in re.findall(r"\b(1\d{3})\)", CODE)} <= listed


@pytest.mark.promise(
    "Documentation of spaces", "the reference names every error, kind, limit, close code and row of spaces"
)
def test_every_row_is_listed() -> None:
    rows = set(firsts(section("In the journal")))
    assert rows == (set(state.FACTS) - {"gauge"}) | OBSERVATIONS


@pytest.mark.promise("Documentation of spaces", "links between documents resolve")
def test_links_lead_somewhere() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    for page in pages:
        for place in re.findall(r"\]\(([^)#:\s]+\.(?:md|py|svg))(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / place).exists(), f"{page.relative_to(ROOT)} links to {place}"


@pytest.mark.promise("Documentation of spaces", "the space on the page about targeting loads")
def test_the_space_of_the_page_on_targeting_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/explain/targeting.md").read_text(), re.M | re.S)
    file = tmp_path / "space.yaml"
    file.write_text(example)
    loaded = load_space(file, {})
    assert not loaded.notices
    aimed = [name for name, stream in loaded.settings.streams.items() if stream.target == ("collector",)]
    assert len(aimed) == 2 and loaded.settings.participants["collector"].is_pipeline
