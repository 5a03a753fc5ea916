"""Administration over HTTP: figures, spaces and tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client.admin import RemoteFigures, RemoteSpaces, RemoteTokens, parse_counters
from penstock.core.errors import PenstockError
from tests.client.scripted_http import Scripted, ScriptedHttp, scripted_http
from tests.server_process import ServerProcess

METRICS = b"""\
# TYPE penstock_in counter
penstock_in_total{stream="a",door="courier"} 3
penstock_up 1.5
"""


@pytest.fixture
def scripted() -> Iterator[ScriptedHttp]:
    with scripted_http() as made:
        made.script("/health", Scripted({"ok": True}))
        made.script("/v1/metrics", Scripted({"streams": [{"id": "a"}]}))
        made.script("/metrics", Scripted(METRICS))
        made.script("/v1/spaces", Scripted({"spaces": [{"id": "demo"}]}))
        yield made


def operator_token(server: ServerProcess) -> str:
    return (server.data / "run" / "operator.token").read_text().strip()


def test_samples_are_found_by_name_and_sorted_labels() -> None:
    assert parse_counters(METRICS.decode()) == {
        ("penstock_in_total", (("door", "courier"), ("stream", "a"))): 3.0,
        ("penstock_up", ()): 1.5,
    }
    assert parse_counters("") == {}


def test_all_figures_are_read_at_once(scripted: ScriptedHttp) -> None:
    figures = RemoteFigures(scripted.url, "secret").read()
    assert (figures.health, figures.streams, figures.spaces) == ({"ok": True}, [{"id": "a"}], [{"id": "demo"}])
    assert figures.counters["penstock_up", ()] == 1.5
    assert [asked.path for asked in scripted.asked] == ["/health", "/v1/metrics", "/metrics?streams=0", "/v1/spaces"]
    assert {asked.token for asked in scripted.asked} == {"Bearer secret"}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_spaces_that_may_not_be_read_are_none(scripted: ScriptedHttp, status: int) -> None:
    scripted.script("/v1/spaces", Scripted(b"", status))
    assert RemoteFigures(scripted.url).read().spaces is None


def test_another_failure_is_raised(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/spaces", Scripted(b"", 503))
    with pytest.raises(PenstockError) as caught:
        RemoteFigures(scripted.url).read()
    assert caught.value.code == "Draining"


def test_a_survey_may_be_of_one_space(scripted: ScriptedHttp) -> None:
    remote = RemoteSpaces(scripted.url)
    assert remote.survey().spaces == remote.survey("a b&c").spaces == [{"id": "demo"}]
    assert [asked.path for asked in scripted.asked] == ["/v1/spaces", "/v1/spaces?space=a+b%26c"]


def test_a_name_of_a_token_is_quoted(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/tokens/a%2Fb%20c", Scripted({"revoked": True}))
    assert RemoteTokens(scripted.url).revoke("a/b c") == {"revoked": True}
    assert scripted.asked[0].method == "DELETE"


def test_a_real_server_has_figures_and_mints_lists_and_revokes(server: ServerProcess) -> None:
    figures = RemoteFigures(server.http, operator_token(server)).read()
    assert figures.health["ok"] and figures.counters
    tokens = RemoteTokens(server.http, operator_token(server))
    minted = tokens.mint(name="mirror", scopes=["streams:jobs:enqueue"], agent="sam")
    assert minted["token"]
    [listed] = [one for one in tokens.listed()["tokens"] if one["name"] == "mirror"]
    assert (listed["scopes"], listed["agent"]) == (["streams:jobs:enqueue"], "sam") and "token" not in listed
    tokens.revoke("mirror")
    assert "mirror" not in [one["name"] for one in tokens.listed()["tokens"]]
    with pytest.raises(PenstockError) as caught:
        tokens.revoke("mirror")
    assert caught.value.code == "UnknownToken"
