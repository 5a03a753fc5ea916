"""The code blocks of pages that need only a server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks, run_blocks
from tests.server_process import ServerProcess

DOCUMENTS = [
    "docs/tutorial/first-queue.md",
    "docs/how-to/command-line.md",
    "docs/how-to/control-gateway.md",
    "docs/how-to/history.md",
    "docs/how-to/kernel.md",
    "docs/how-to/limits.md",
    "docs/how-to/relay.md",
    "docs/how-to/reload.md",
    "docs/how-to/order-and-priority.md",
    "docs/how-to/simulate.md",
    "docs/how-to/tokens.md",
    "docs/how-to/triggers.md",
    "docs/how-to/views.md",
]
FOR_OPERATORS = [
    "docs/how-to/operate.md",
    "docs/how-to/backup.md",
    "docs/how-to/console.md",
    "docs/how-to/upgrade.md",
    "docs/how-to/when-stuck.md",
]
"""Documents that share a server."""
CONFIGURED = [
    "docs/how-to/schemas.md",
    "docs/how-to/skills.md",
    "docs/how-to/events.md",
    "docs/how-to/tenants.md",
    "docs/how-to/gateway.md",
    "docs/how-to/join-a-space.md",
    "docs/how-to/python.md",
    "docs/tutorial/first-space.md",
]
"""Documents with a server of their own: blocks marked `files` come before it, the one marked `server` is its config."""
RELAYED = ["docs/how-to/token-streams.md"]
"""Documents whose server has a relay, and no config."""
ALSO_RELAYED = ["docs/how-to/python.md"]
"""Those with a config and a relay."""
ALONE = "docs/how-to/test-your-agents.md"
"""Its programs bring their server along."""
TEN_MINUTES = "docs/tutorial/ten-minutes.md"
LIKE_THE_DEMO = """
spaces:
  - space: {id: demo}
    participants: {ada: {capabilities: [{kind: chat}]}}
"""
BLOCK_SECONDS = 60
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", re.M)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    yield process
    process.kill()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_a_document_runs(document: str, server: ServerProcess) -> None:
    assert run_blocks(document, server, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"


@pytest.mark.promise(
    "SDK and command line", "`penstock.testing.serve()` runs a server in a test and leaves nothing behind"
)
@pytest.mark.parametrize("code", [code for language, code in blocks(ALONE) if language == "python"])
def test_every_block_about_testing_runs_by_itself(code: str) -> None:
    exec(compile(code, ALONE, "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("shared"))
    yield process
    process.kill()


@pytest.mark.promise("Documentation", "every block of the pages for operators runs")
@pytest.mark.parametrize("document", FOR_OPERATORS)
def test_every_block_of_a_document_for_operators_runs(document: str, shared: ServerProcess) -> None:
    assert run_blocks(document, shared, BLOCK_SECONDS) >= 2, f"{document} has lost its examples"


def test_the_duplicate_of_the_tutorial_is_answered_as_a_duplicate(server: ServerProcess) -> None:
    code = next(code for _, code in blocks("docs/tutorial/first-queue.md") if "img-3" in code)
    here = code.replace("localhost:8787", server.http.removeprefix("http://"))
    done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=BLOCK_SECONDS, check=True)
    assert '"duplicate":true' in done.stdout


@pytest.mark.parametrize("document", RELAYED)
def test_every_block_of_a_document_runs_beside_a_relay(document: str, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--relay")
    try:
        assert run_blocks(document, server, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"
    finally:
        server.stop()


@pytest.mark.promise("Documentation", "the tutorial of the first ten minutes works: a message through each protocol")
def test_every_command_of_the_first_ten_minutes_runs(tmp_path: Path) -> None:
    """What needs Spark runs in `test_pipeline_documents.py`."""
    server = ServerProcess(tmp_path, "--relay", config=LIKE_THE_DEMO)
    try:
        assert run_blocks(TEN_MINUTES, server, BLOCK_SECONDS) >= 6, "it has lost its examples"
    finally:
        server.kill()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Git hosts derive them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.promise("Documentation", "every page is in the index, and no link is dead")
def test_every_page_is_in_the_index_and_every_link_leads_somewhere() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text()
    missing = [
        name
        for path in sorted(docs.rglob("*.md"))
        if (name := path.relative_to(docs).as_posix()) != "README.md" and f"({name})" not in index
    ]
    assert missing == [], "docs/README.md leaves them out"
    for path in [*docs.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("benches/*.md")]:
        for link, anchor in LINK.findall(FENCED.sub("", path.read_text())):
            target = path.parent / link if link else path
            assert target.exists(), f"{path.relative_to(ROOT)} links to {link}"
            known = anchors(target) if anchor and target.suffix == ".md" else {anchor}
            assert anchor in known, f"{path.relative_to(ROOT)} links to {link}#{anchor}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/explain").glob("*.md")), ids=lambda page: page.stem)
def test_every_explanation_starts_with_the_question_it_answers(page: Path) -> None:
    title, _, text = page.read_text().partition("\n\n")
    assert title.startswith("# ") and re.match(r"\*\*[A-Z][^*]+\?\*\*", text), page.name


@pytest.mark.promise(
    "Documentation of spaces",
    "the tutorial's first space works as described: chat, a targeted stream, an invitation, a kick, a stream opened and closed over HTTP",
)
@pytest.mark.parametrize("document", CONFIGURED)
def test_every_block_of_a_document_with_its_own_config_runs(document: str, tmp_path: Path) -> None:
    for _, code in blocks(document, "files"):
        subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path, timeout=BLOCK_SECONDS, check=True)
    ((_, config),) = blocks(document, "server")
    words = ["--relay"] if document in ALSO_RELAYED else []
    server = ServerProcess(tmp_path, *words, config=config)
    try:
        assert run_blocks(document, server, BLOCK_SECONDS) >= 2, f"{document} has lost its examples"
    finally:
        server.stop()
