"""The scanner in C accepts only what the checks in Python accept, and those judge the rest: the answers are the same with and without it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import json_checks
from penstock.core.json_checks import depth_problem, plain_depth
from penstock.dialects.courier.wire.envelopes import decoded_json_problem, json_problem
from tests.hostile_json import plain, shapes
from tests.paths import ROOT

needs_native = pytest.mark.skipif(
    not json_checks.IS_NATIVE, reason="needs the optional wheel: `make setup` builds it with a C compiler"
)

PLAIN = {
    b"0": 0, b"-0": 0, b"12.50": 0, b"true": 0, b" false\r\n": 0, b"null": 0, b'""': 0, b"[]": 1, b"{}": 1, b"[[],[]]": 2,
    b'{"a":{"a":[{"a":1}]},"b":"a"}': 4, b'[{"a":1},{"a":1}]': 2, b' [ 1 , { "a" : [ ] } ]\t': 3,
    b'"\\" \\\\ \\/ \\b\\f\\n\\r\\t"': 0, '"é — 漢 𝄞 \x7f"'.encode(): 0, b"9" * 100: 0, b"[" * 128 + b"]" * 128: 128,
    b"{" + b",".join(b'"%02d":0' % number for number in range(64)) + b"}": 1,
}  # fmt: skip
"""JSON that needs no closer look, and its depth."""
LOOK_CLOSER = [
    b"", b" ", b"[", b"]", b"{", b"}", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1}", b'{"a":1]', b'{"a"}', b'{"a":}',
    b'{"a":1,}', b'{,"a":1}', b"{1:2}", b'{"a":1 "b":2}', b'{"a" 1}', b"1 2", b"[]]", b"{}}", b'"', b'"a', b'"\\', b'"\\"', b'"\\x"',
    b'"\\\x00"', b'"\x00"', b'"\x1f"', b'"a\nb"', b"-", b"+1", b"01", b"-01", b"1.", b".5", b"1.e5", b"0x1", b"NaN", b"Infinity",
    b"tru", b"truE", b"nul", b"fals", b"nulll", b'{"a":1,"a":2}', b'{"a":{},"b":[{"c":1,"c":1}]}', b'{"":1,"":2}',
    b'{"a":1,"\\u0061":2}', b'{"a\\"":1}', b'"\\u0041"', b'"\\ud800"', b"1e5", b"1E400", b"[1e5]", b"9" * 101,
    b'"\x80"', b'"\xc3"', b'"\xc3', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xe0\x80\x80"', b'"\xf0\x80\x80\x80"', b'"\xf4\x90\x80\x80"',
    b'"\xf5\x80\x80\x80"', b'"\xe2\x82', b'"\xe2\x82"', b'"\xf0\x9d\x84"', b"[" * 129 + b"]" * 129, b"[" * 100_000,
    b"{" + b",".join(b'"%02d":0' % number for number in range(65)) + b"}", b"[" + b",".join([b"[]"] * 10_000) + b"]",
    b'{"a":' * 300, b'"' + b"a" * 6 + b"\x01" + b'b"', b'"' + b"a" * 9 + b'\\u0041"', b'{"12345678":1,"12345678":2}',
]  # fmt: skip
"""What only Python judges: wrong, costly, or merely unusual."""

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
_texts = _values.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))
_indented = _values.map(lambda value: json.dumps(value, indent=1))
_tokens = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ",", ":", " ", '"', '"a"', '"b"', '"a":', '"b":', "1", "-", "0", ".", "e", "null", "true", "\\", "\\u0041", "é"]
    ),
    max_size=24,
).map("".join)  # fmt: skip


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _agrees(data: bytes) -> None:
    """Both judge alike, and the depth is the one that Python counts."""
    assert json_problem(data) == decoded_json_problem(data)
    depth = plain_depth(data)
    if depth >= 0:
        assert decoded_json_problem(data) is None
        assert depth_problem(data, depth) is None
        assert depth == 0 or depth_problem(data, depth - 1) is not None


@given(st.binary(max_size=64) | _texts.map(_encoded) | _indented.map(_encoded) | _tokens.map(_encoded))
@pytest.mark.promise("Security", "the scanner in C accepts nothing that the checks in Python refuse, for any bytes")
def test_the_scanner_agrees_with_the_checks_in_python(data: bytes) -> None:
    _agrees(data)


@given(_texts.map(_encoded), st.data())
def test_it_agrees_about_json_with_a_few_other_bytes(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    _agrees(bytes(damaged))
    _agrees(data[: draw.draw(st.integers(0, len(data)))])


@pytest.mark.parametrize("data", [*PLAIN, *LOOK_CLOSER], ids=range(len(PLAIN) + len(LOOK_CLOSER)))
def test_it_agrees_about_each_vector(data: bytes) -> None:
    _agrees(data)


@needs_native
def test_plain_json_is_accepted_with_its_depth() -> None:
    assert {data: plain_depth(data) for data in PLAIN} == PLAIN
    assert {plain_depth(data) for data in LOOK_CLOSER} == {-1}
    assert plain_depth(plain(60_000).replace(b"1e1", b"10", 1)) == 3


@pytest.mark.parametrize("name", shapes(1))
def test_it_agrees_about_costly_shapes(name: str) -> None:
    _agrees(shapes(20_000)[name])


@needs_native
@pytest.mark.parametrize("data", ["[]", bytearray(b"[]"), None, 1])
def test_it_takes_bytes_only(data: object) -> None:
    with pytest.raises(TypeError, match="takes bytes"):
        plain_depth(data)  # type: ignore[arg-type]


@pytest.mark.promise("Operations", "the server runs without the extension in C, and the checks in Python judge alike")
def test_without_the_wheel_the_checks_are_those_in_python() -> None:
    program = (
        "import sys; sys.modules['penstock_native'] = None\n"
        "from penstock.core import json_checks\n"
        "from penstock.dialects.courier.wire.envelopes import json_problem\n"
        "assert not json_checks.IS_NATIVE and json_checks.plain_depth(b'[]') == -1\n"
        'print(json_problem(b\'{"a":1}\'), json_problem(b\'{"a":1,"a":2}\').message)\n'
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "None key `a` is given twice\n"), done.stderr


def test_the_build_names_what_is_missing(tmp_path) -> None:
    script = [sys.executable, str(ROOT / "native/hatch_build.py")]
    without = subprocess.run(
        script, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=120
    )
    assert (without.returncode, without.stdout) == (1, "there is no C compiler\n")
