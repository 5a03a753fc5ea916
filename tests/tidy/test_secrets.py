"""Secrets are compared in constant time: no code compares a token, a digest or a MAC with `==`, `!=` or `in`.

A comparison that ends at the first different byte tells an attacker how much of a guess was right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

SECRET = re.compile(r"(^|_)(token|secret|h?mac|digest|signature|password|cookie|nonce|seed|key)(s|_text|_hex)?$")
PLAIN_KEYS = re.compile(r"^_?[a-z_]*keys?$")
"""`key` is mostly that of a mapping; keys of ciphers are called `mac_key` or `signing_key`."""
CIPHER_KEYS = ("mac_key", "signing_key", "private_key", "console_key")
ALLOWED = {
    "nonce in seen": "nonces are public parts of signed messages",
    "nonce in self._seen.get(signer, ())": "nonces are public parts of signed messages",
    "mac in self._seen": "MACs of messages that already arrived are public",
    "chunk.mac in self._seen": "MACs of messages that already arrived are public",
    "mac != _MAC": "the length of a MAC",
    "digest in seen": "two tokens of one config",
    "entry.digest != digest": "the digest of a request body, which its sender knows",
    "token == OPERATOR_TOKEN": "a simulated server",
}


def name_of(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return name_of(node.func)
        case ast.Subscript():
            return name_of(node.value)
        case _:
            return ""


def is_secret(node: ast.expr) -> bool:
    name = name_of(node)
    return name in CIPHER_KEYS or bool(SECRET.search(name) and not PLAIN_KEYS.search(name))


def comparisons(source: str) -> Iterator[str]:
    """Comparisons of secrets that may end early; with a constant, only the presence of one is tested."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare) or isinstance(node.ops[0], ast.Is | ast.IsNot | ast.Lt | ast.Gt):
            continue
        sides = [node.left, *node.comparators] if isinstance(node.ops[0], ast.Eq | ast.NotEq) else [node.left]
        if any(map(is_secret, sides)) and not any(isinstance(side, ast.Constant) for side in sides):
            yield ast.unparse(node)


@pytest.mark.promise("Security", "secrets are compared in constant time")
def test_no_secret_is_compared_with_an_operator_that_ends_early() -> None:
    found = {one for path in (ROOT / "src/penstock").rglob("*.py") for one in comparisons(path.read_text("utf-8"))}
    assert found - ALLOWED.keys() == set(), "use hmac.compare_digest, or allow it here with its reason"
    assert ALLOWED.keys() - found == set(), "these reasons are not needed"


@pytest.mark.parametrize(
    "planted",
    ["given == self._token", "mac != self.next_mac(data)", "token in tokens", "digest(a) == b", "mac_key == x"],
)
def test_the_check_finds(planted: str) -> None:
    assert list(comparisons(f"if {planted}: pass")) == [planted]


@pytest.mark.parametrize("fine", ["token is None", 'token == ""', "key == other", "len(token) > 3", "name == other"])
def test_the_check_leaves(fine: str) -> None:
    assert list(comparisons(f"if {fine}: pass")) == []
