"""The built console: small, self-contained, and within its content policy."""

import gzip
import re
from pathlib import Path

import pytest

from penstock.server.metrics.metric_names import METRICS
from tests.paths import ROOT

BUILT = ROOT / "src" / "penstock" / "console"
COMPRESSED_MAX = 120_000
SOURCE_LINES_MAX = 500
NAMESPACES = {
    "http://www.w3.org/2000/svg",
    "http://www.w3.org/1998/Math/MathML",
    "http://www.w3.org/1999/xhtml",
}

needs_build = pytest.mark.usefixtures("built_console")


def built(suffix: str = "") -> list[Path]:
    found = sorted(path for path in BUILT.iterdir() if path.name.endswith(suffix))
    assert found, f"no built file ends in `{suffix}`, so the check would be vacuous"
    return found


@pytest.mark.promise("Console", "the page has under 120 kB compressed, in files with digests in their names")
@needs_build
def test_the_compressed_size_is_below_the_limit() -> None:
    total = sum(len(gzip.compress(path.read_bytes(), 9)) for path in built())
    assert total < COMPRESSED_MAX, f"{total} bytes compressed"


@pytest.mark.promise("Console", "the page violates no content policy and loads nothing from another origin")
@needs_build
def test_the_page_has_no_inline_code_and_loads_only_built_files() -> None:
    page = (BUILT / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert loaded
    names = {path.name for path in built()}
    assert {address.removeprefix("/console/") for address in loaded} <= names


@pytest.mark.promise("Console", "the page has under 120 kB compressed, in files with digests in their names")
@needs_build
def test_file_names_contain_digests_for_caching() -> None:
    for path in built():
        assert path.name == "index.html" or re.fullmatch(r"[\w-]+-[\w-]{8}\.(js|css|svg)", path.name), path.name


@pytest.mark.promise("Console", "the page violates no content policy and loads nothing from another origin")
@needs_build
def test_no_file_names_another_origin() -> None:
    for path in built():
        addresses = set(re.findall(r"(?:https?|wss?)://[\w.-]+[\w./-]*", path.read_text()))
        assert addresses <= NAMESPACES, path.name


@pytest.mark.promise("Console", "the page violates no content policy and loads nothing from another origin")
@needs_build
def test_scripts_inject_no_markup_and_evaluate_no_code() -> None:
    for path in built(".js"):
        text = path.read_text()
        # The library contains `innerHTML` for an option that is not used here, so only the sources are checked for it.
        assert not re.search(r"\beval\(|new Function\(|insertAdjacentHTML|document\.write", text)
        assert "sourceMappingURL" not in text
    for path in (ROOT / "console" / "src").rglob("*.ts*"):
        assert not re.search(r"innerHTML|dangerouslySetInnerHTML|: any\b|as any\b|@ts-ignore", path.read_text()), path


@pytest.mark.promise("Console", "every metric it shows is exported by the server")
def test_every_metric_in_the_console_exists_on_the_server() -> None:
    known = {metric.sample for metric in METRICS}
    sources = (ROOT / "console" / "src").rglob("*.ts*")
    named = {name for path in sources for name in re.findall(r"\bpenstock_[a-z_]+", path.read_text())}
    assert len(named) > 20
    assert named <= known


@pytest.mark.promise("Console", "the lock file names no registry")
def test_the_lock_names_no_registry() -> None:
    lock = (ROOT / "console" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "://" not in lock
    assert lock.count('"integrity"') > 20


def test_console_modules_are_small_and_start_with_a_comment() -> None:
    sources = [*(ROOT / "console" / "src").rglob("*.ts"), *(ROOT / "console" / "src").rglob("*.tsx")]
    assert len(sources) > 20
    for path in sources:
        text = path.read_text()
        assert len(text.splitlines()) <= SOURCE_LINES_MAX, path
        assert text.startswith("// "), f"{path} does not start with a comment"
