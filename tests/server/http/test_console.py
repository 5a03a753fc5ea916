"""The console's files and its sign-in, as values."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from penstock.server.auth.tokens import TokenStore
from penstock.server.config.sections import AuthSection, TokenSection
from penstock.server.http.console import Console, Login
from penstock.server.http.console_sessions import Sessions
from penstock.transports.http_replies import Reply

HOST = "localhost:8787"
PAGE = {"Host": HOST, "Origin": f"http://{HOST}"}
ADMIN = TokenSection(token="admin-token", name="ops", scopes=("admin:*",))
PLAIN = TokenSection(token="plain-token", name="sam", scopes=("streams:*:*",))
CODE = b"export const answer = 42;\n" * 100


def store(*tokens: TokenSection) -> TokenStore:
    return TokenStore(AuthSection(tokens=tokens or (ADMIN, PLAIN)), "operator-token")


def request(**headers: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"Host": HOST, **named}


@pytest.fixture
def console(tmp_path: Path) -> Console:
    folder = tmp_path / "console"
    (folder / "nested").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Penstock</title>")
    (folder / "index-Ab3_x-Zq.js").write_bytes(CODE)
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "secret.key").write_text("not a kind of file that is served")
    (folder / "nested" / "a.js").write_text("nor one in a folder")
    (tmp_path / "outside.js").write_text("nor one beside it")
    return Console(Sessions(store(), None), lambda: {"version": "9"}, folder)


@pytest.mark.promise("Administration", "the console's files are compressed, cached, and the only ones served")
def test_files_are_served_pressed_where_that_is_taken(console: Console) -> None:
    plain = console.file(request(), "index-Ab3_x-Zq.js")
    assert (plain.status, plain.body) == (200, CODE)
    assert plain.content_type == "text/javascript; charset=utf-8"
    for accepted in ("gzip", "br, gzip;q=0.5", "deflate , GZIP"):
        pressed = console.file(request(Accept_Encoding=accepted), "index-Ab3_x-Zq.js")
        assert pressed.headers["Content-Encoding"] == "gzip" and pressed.headers["Vary"] == "Accept-Encoding"
        assert isinstance(pressed.body, bytes) and gzip.decompress(pressed.body) == CODE
        assert len(pressed.body) < len(CODE)
    for accepted in ("identity", "gzip;q=0", "x-gzip2"):
        assert console.file(request(Accept_Encoding=accepted), "index-Ab3_x-Zq.js").body == CODE


@pytest.mark.promise("Administration", "the console's files are compressed, cached, and the only ones served")
def test_a_file_that_a_browser_has_is_not_sent_again(console: Console) -> None:
    etag = console.file(request(), "index-Ab3_x-Zq.js").headers["ETag"]
    for given_back in (etag, etag.removeprefix("W/"), f'"other", {etag}'):
        again = console.file(request(If_None_Match=given_back), "index-Ab3_x-Zq.js")
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", etag)
    assert console.file(request(If_None_Match='"other"'), "index-Ab3_x-Zq.js").status == 200


def test_only_what_has_its_digest_in_its_name_is_kept_for_good(console: Console) -> None:
    assert "immutable" in console.file(request(), "index-Ab3_x-Zq.js").headers["Cache-Control"]
    for name in ("index.html", "favicon.svg"):
        assert console.file(request(), name).headers["Cache-Control"] == "no-cache"


def test_the_page_may_load_and_ask_nothing_but_what_this_server_has(console: Console) -> None:
    page = console.page(request(Accept="text/html"))
    assert isinstance(page, Reply) and page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-cache" and "Accept" in page.headers["Vary"]
    assert isinstance(console.page(request(Accept="*/*")), Reply)
    for accepted in ("application/json", "text/plain"):  # programs get words
        assert console.page(request(Accept=accepted)) is None


@pytest.mark.promise("Administration", "the console's files are compressed, cached, and the only ones served")
@pytest.mark.parametrize(
    "name",
    [
        "../outside.js",
        "..",
        ".",
        "",
        "secret.key",
        "nested",
        "nested/a.js",
        "..%2foutside.js",
        "\0",
        "INDEX.HTML",
    ],
)
def test_nothing_else_is_a_file_of_the_console(console: Console, name: str) -> None:
    reply = console.file(request(), name)
    assert isinstance(reply.body, bytes)
    assert reply.status == 404 and msgspec.json.decode(reply.body)["error"]["code"] == "UnknownRoute"


def test_where_the_console_was_not_built_it_says_how(tmp_path: Path) -> None:
    bare = Console(Sessions(store(), None), dict, tmp_path / "nothing")
    assert not bare.is_built and bare.page(request()) is None
    assert b"make setup" in bytes(bare.file(request(), "index.html").body)  # type: ignore[arg-type]


def test_signing_in_and_out(console: Console) -> None:
    done = console.sign_in(request(Origin=f"http://{HOST}"), "127.0.0.1", Login("operator-token"))
    assert done.status == 200 and done.headers["Cache-Control"] == "no-store"
    assert msgspec.json.decode(done.body) == {"name": "operator", "operator": True, "version": "9"}  # type: ignore[arg-type]
    cookie = done.headers["Set-Cookie"].partition(";")[0]
    principal = console.resolve({**PAGE, "Cookie": cookie})
    assert principal is not None and console.session(principal).status == 200
    assert console.resolve(PAGE) is None
    refused = console.sign_in(request(), "127.0.0.1", Login("plain-token"))
    assert refused.status == 401 and "Set-Cookie" not in refused.headers
    out = console.sign_out(request())
    assert out.status == 204 and "Max-Age=0" in out.headers["Set-Cookie"]
