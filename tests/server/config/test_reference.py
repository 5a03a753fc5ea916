"""The printed reference of the config and of the errors."""

import pytest

from penstock.cli import main
from penstock.core.errors import TABLE
from penstock.core.limits import Limits
from penstock.server.config.reference import error_reference, field_docs, reference
from penstock.server.config.sections import JournalSection, Sections, StreamsSection
from tests.server.config.test_load import REFERENCE


def test_every_setting_is_documented() -> None:
    for struct in (StreamsSection, Limits, JournalSection):
        assert set(field_docs(struct)) == set(struct.__struct_fields__)
    text = reference()
    for section in Sections.__struct_fields__:
        assert f"## `{section}" in text


@pytest.mark.parametrize(("name", "text"), [("config.md", reference()), ("errors.md", error_reference())])
def test_the_reference_page_is_fresh(name: str, text: str) -> None:
    page = REFERENCE / name
    assert page.read_text(encoding="utf-8") == text, f"docs/reference/{name} is stale: print it again"


def test_the_error_codes_are_printed_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", "errors"]) == 0
    assert capsys.readouterr().out == error_reference()


@pytest.mark.promise("Foundations", "HTTP, WebSocket, command line and documentation share one error table")
def test_every_error_code_is_in_the_reference() -> None:
    text = error_reference()
    assert all(f"| `{code}` | {kind.status} |" in text for code, kind in TABLE.items())
