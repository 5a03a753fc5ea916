"""The cookie of a console session: its attributes, its expiry, and which requests may use it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.core.scopes import OPERATOR
from penstock.server.auth.tokens import TokenStore
from penstock.server.config.sections import AuthSection, TokenSection
from penstock.server.http.console_sessions import COOKIE_MAX, COOKIES_MAX, ENDED_FILE, ENDED_MAX, SESSION_S, Sessions

NOW_S = 1_800_000_000
HOST = "localhost:8787"
PAGE = {"Host": HOST, "Origin": f"http://{HOST}"}
ADMIN = TokenSection(token="admin-token", name="ops", scopes=("admin:*",))
PLAIN = TokenSection(token="plain-token", name="sam", scopes=("streams:*:*",))
CODE = b"export const answer = 42;\n" * 100


def store(*tokens: TokenSection) -> TokenStore:
    return TokenStore(AuthSection(tokens=tokens or (ADMIN, PLAIN)), "operator-token")


def signed_in(sessions: Sessions, token: str = "operator-token", headers: dict[str, str] = PAGE) -> str:
    """What a browser sends after signing in."""
    opened = sessions.open(token, headers, NOW_S)
    assert opened is not None
    return opened[1].partition(";")[0]


def known(sessions: Sessions, cookie: str, now_s: int = NOW_S, **headers: str) -> str | None:
    principal = sessions.resolve({**PAGE, "Cookie": cookie, **headers}, now_s)
    return None if principal is None else principal.name


@pytest.mark.promise(
    "Administration",
    "the console's cookie has safe attributes, expires, is for administrators only, and any change invalidates it",
)
def test_a_cookie_is_for_this_origin_and_for_no_script() -> None:
    sessions = Sessions(store(), None)
    opened = sessions.open("operator-token", PAGE, NOW_S)
    assert opened is not None
    name, *attributes = opened[1].split("; ")
    assert opened[0] is OPERATOR and name.startswith("penstock-8787=") and "operator-token" not in name
    assert attributes == ["Path=/", f"Max-Age={SESSION_S}", "HttpOnly", "SameSite=Strict"]
    behind_tls = sessions.open("operator-token", {"Host": "a.example", "Origin": "https://a.example"}, NOW_S)
    assert behind_tls is not None
    assert behind_tls[1].startswith("penstock=") and behind_tls[1].endswith("; Secure")
    assert sessions.close(PAGE, NOW_S).startswith("penstock-8787=; Path=/; Max-Age=0; HttpOnly")


@pytest.mark.promise(
    "Administration",
    "the console's cookie has safe attributes, expires, is for administrators only, and any change invalidates it",
)
def test_only_an_administrator_signs_in() -> None:
    sessions = Sessions(store(), None)
    assert known(sessions, signed_in(sessions)) == "operator"
    assert known(sessions, signed_in(sessions, "admin-token")) == "ops"
    for token in ("plain-token", "", "operator-token ", "unknown"):
        assert sessions.open(token, PAGE, NOW_S) is None


@pytest.mark.promise(
    "Administration",
    "the console's cookie has safe attributes, expires, is for administrators only, and any change invalidates it",
)
def test_a_session_ends_after_its_time() -> None:
    sessions = Sessions(store(), None)
    cookie = signed_in(sessions)
    assert known(sessions, cookie, NOW_S + SESSION_S - 1) == "operator"
    assert known(sessions, cookie, NOW_S + SESSION_S) is None


_SESSIONS = Sessions(store(), None)
_COOKIE = signed_in(_SESSIONS, "admin-token")
_VALUE = _COOKIE.partition("=")[2]


@pytest.mark.promise(
    "Administration",
    "the console's cookie has safe attributes, expires, is for administrators only, and any change invalidates it",
)
@given(st.integers(0, len(_VALUE)), st.integers(0, 3), st.text(st.characters(codec="latin-1"), max_size=3))
def test_any_change_of_a_cookie_is_refused(at: int, gone: int, put: str) -> None:
    changed = _VALUE[:at] + put + _VALUE[at + gone :]
    assume(changed.split(";")[0].strip() != _VALUE)
    assert known(_SESSIONS, f"penstock-8787={changed}") is None
    assert known(_SESSIONS, _COOKIE) == "ops"


def test_a_cookie_of_another_server_is_not_accepted() -> None:
    ours, others = Sessions(store(), None), Sessions(store(), None)
    signed_in(ours)
    assert known(ours, signed_in(others)) is None
    assert known(Sessions(store(), None), signed_in(others)) is None  # no session was ever opened there
    elsewhere = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    cookie = signed_in(ours, headers=elsewhere)
    assert cookie.startswith("penstock-9999=") and known(ours, cookie) is None


def test_cookies_of_other_programs_on_this_machine_are_ignored() -> None:
    sessions = Sessions(store(), None)
    cookie = signed_in(sessions)
    assert known(sessions, f'theme={{"a": 1}}; bad[name]=x;; {cookie}; y') == "operator"
    planted = "; ".join(["penstock-8787=planted"] * (COOKIES_MAX - 1))
    assert known(sessions, f"{planted}; {cookie}") == "operator"
    assert known(sessions, f"{planted}; penstock-8787=x; {cookie}") is None  # so much is looked at
    assert known(sessions, "penstock-8787=" + "x" * (COOKIE_MAX + 1)) is None
    assert known(sessions, "penstock-8787=ö.ö") is None


@pytest.mark.promise("Administration", "pages of other ports and origins have no session")
@pytest.mark.parametrize("site", ["same-site", "cross-site", "anything"])
def test_a_browser_that_says_another_page_asked_is_not_believed(site: str) -> None:
    sessions = Sessions(store(), None)
    cookie = signed_in(sessions)
    assert known(sessions, cookie, **{"Sec-Fetch-Site": site}) is None
    for own in ("same-origin", "none"):
        assert known(sessions, cookie, **{"Sec-Fetch-Site": own}) == "operator"


@pytest.mark.promise("Administration", "pages of other ports and origins have no session")
@pytest.mark.parametrize("origin", ["http://localhost:9999", "https://a.example", "null", ""])
def test_a_page_of_another_place_has_no_cookie_listed_or_not(origin: str) -> None:
    sessions = Sessions(store(), None)
    assert known(sessions, signed_in(sessions), Origin=origin) is None


@pytest.mark.promise("Administration", "a session ends with its token and survives a restart, and no token is logged")
def test_a_session_ends_with_its_token_and_with_the_right_to_administer() -> None:
    tokens = store()
    sessions = Sessions(tokens, None)
    cookie, operators = signed_in(sessions, "admin-token"), signed_in(sessions)
    tokens.adopt(AuthSection(tokens=(PLAIN, msgspec.structs.replace(ADMIN, name="renamed"))))
    assert known(sessions, cookie) == "renamed"
    tokens.adopt(AuthSection(tokens=(msgspec.structs.replace(ADMIN, scopes=("streams:*:*",)),)))
    assert known(sessions, cookie) is None
    tokens.adopt(AuthSection(tokens=(PLAIN,)))
    assert (known(sessions, cookie), known(sessions, operators)) == (None, "operator")


def test_a_restart_keeps_sessions_and_removing_the_key_ends_them(tmp_path: Path) -> None:
    key = tmp_path / "console.key"
    cookie = signed_in(Sessions(store(), key))
    assert key.stat().st_mode & 0o777 == 0o600
    assert known(Sessions(store(), key), cookie) == "operator"
    key.write_text("no key\n")
    assert known(Sessions(store(), key), cookie) is None
    key.unlink()
    again = Sessions(store(), key)
    signed_in(again)
    assert known(again, cookie) is None


def test_a_key_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    sessions = Sessions(store(), tmp_path / "gone" / "console.key")
    assert known(sessions, signed_in(sessions)) == "operator"


# Signing out


@pytest.mark.promise(
    "Administration", "signing out of the console ends its session on the server, also after a restart"
)
def test_a_closed_session_is_refused_whoever_kept_its_cookie(tmp_path: Path) -> None:
    sessions = Sessions(store(), tmp_path / "console.key")
    cookie, other = signed_in(sessions), signed_in(sessions)
    assert cookie != other, "two sessions of one second are distinct"
    sessions.close({**PAGE, "Cookie": cookie}, NOW_S)
    assert (known(sessions, cookie), known(sessions, other)) == (None, "operator")
    again = Sessions(store(), tmp_path / "console.key")
    assert (known(again, cookie), known(again, other)) == (None, "operator")


def test_a_page_of_another_origin_closes_no_session() -> None:
    sessions = Sessions(store(), None)
    cookie = signed_in(sessions)
    sessions.close({**PAGE, "Cookie": cookie, "Sec-Fetch-Site": "same-site"}, NOW_S)
    assert known(sessions, cookie) == "operator"


def test_closed_sessions_are_forgotten_when_their_cookies_expire(tmp_path: Path) -> None:
    sessions = Sessions(store(), tmp_path / "console.key")
    sessions.close({**PAGE, "Cookie": signed_in(sessions)}, NOW_S)
    opened = sessions.open("operator-token", PAGE, NOW_S + SESSION_S)
    assert opened is not None
    sessions.close({**PAGE, "Cookie": opened[1].partition(";")[0]}, NOW_S + SESSION_S)
    assert len(msgspec.json.decode((tmp_path / ENDED_FILE).read_bytes())) == 1


def test_too_many_closed_sessions_end_all_of_them() -> None:
    sessions = Sessions(store(), None)
    first, last = signed_in(sessions), signed_in(sessions)
    sessions.close({**PAGE, "Cookie": first}, NOW_S)
    for _ in range(ENDED_MAX):
        sessions.close({**PAGE, "Cookie": signed_in(sessions)}, NOW_S)
    assert (known(sessions, first), known(sessions, last)) == (None, None)
    assert known(sessions, signed_in(sessions)) == "operator"
