"""Valid and invalid envelopes, and their bytes stay unchanged."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.clock import rfc3339
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.state import Cause
from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.dialects.courier.wire.envelopes import (
    HEADS_MAX,
    KEY_MAX,
    bury,
    compose,
    inbox,
    json_problem,
    parse,
    parse_all,
    partition_key,
    priority,
    revive,
)

LIMITS = Limits()
JEN = Principal("jen token", agent="Jen", scopes=require(["streams:*:*"]))
GOOD = {
    "id": "e-91a",
    "ts": "2025-10-18T19:55:00Z",
    "from": "architect",
    "to": "a",
    "type": "sprint.assign",
    "schema": "xeno/sprint-assign@v1",
    "version": 1,
    "corr": "c-42",
    "refs": ["T1102"],
    "tags": ["sprint"],
    "headers": {"priority": "normal"},
    "payload": {"wave": "B"},
}


def raw(**changes: Any) -> bytes:
    """The seed's envelope, with members changed, or left out where `...` is given."""
    envelope = {**GOOD, **{key.rstrip("_"): value for key, value in changes.items()}}
    return json.dumps({key: value for key, value in envelope.items() if value is not ...}).encode()


def checked(data: bytes, to: str = "a", principal: Principal = ANONYMOUS) -> Record | Refusal:
    """Parse as a request would: the JSON of the whole first."""
    return json_problem(data) or parse(data, to, principal, LIMITS)


def code(data: bytes, to: str = "a", principal: Principal = ANONYMOUS) -> str:
    answer = checked(data, to, principal)
    assert isinstance(answer, Refusal), answer
    return answer.code


def body(data: bytes, to: str = "a", principal: Principal = ANONYMOUS) -> bytes:
    answer = checked(data, to, principal)
    assert isinstance(answer, Record), answer
    return answer.body


class TestAccepted:
    def test_the_seeds_envelope_passes_byte_for_byte(self) -> None:
        record = checked(raw())
        assert isinstance(record, Record)
        assert record.body == raw()
        assert (record.id, record.kind, record.sender, record.corr) == (
            "e-91a", "sprint.assign", "architect", "c-42",
        )  # fmt: skip

    @pytest.mark.parametrize(
        "changes",
        [
            {
                "from_": ...,
                "schema": ...,
                "version": ...,
                "corr": ...,
                "refs": ...,
                "tags": ...,
                "headers": ...,
            },
            {"from_": None, "schema": None, "version": None, "corr": None, "refs": None, "headers": None},
            {"payload": None},
            {"payload": []},
            {"payload": ""},
            {"payload": 0},
            {"id": "x" * 256},
            {"type": "t" * 256},
            {"id": "ü" * 256},
            {"id": "😀" * 256},
            {"version": -1},
            {"version": 2**64},
            {"headers": {"a": "x", "b": 1, "c": 1.5, "d": True, "e": None}},
            {"refs": [], "tags": []},
            {"unknown": {"kept": [1, {"so": "are"}, "all"]}, "Another": None},
            {"payload": "\u0000\u001f\u007f\u2028\ufeff\uffff"},
        ],
        ids=str,
    )
    def test_other_good_ones(self, changes: dict[str, Any]) -> None:
        assert body(raw(**changes)) == raw(**changes)

    @pytest.mark.parametrize(
        "ts",
        [
            "2025-10-18T19:55:00Z",
            "2025-10-18T19:55:00+02:00",
            "2025-10-18T19:55:00-11:30",
            "2025-10-18T19:55:00.1Z",
            "2025-10-18T19:55:00.123456789Z",
            "2025-10-18t19:55:00z",
            "2024-02-29T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ],
    )
    def test_times_are_kept_as_sent(self, ts: str) -> None:
        assert json.loads(body(raw(ts=ts)))["ts"] == ts

    @pytest.mark.parametrize(
        "payload",
        [
            b"1.0", b"1e5", b"1E+5", b"-0", b"0.1000", b"1" * 400, b"-" + b"9" * 60, b'"\\u00e9\\/\\ud83d\\ude00"',
            '"é😀"'.encode(), b'{"a":{"a":{"a":1}}}', b'[{"a":1},{"a":1}]', b' {\t"a" :\r\n 1 } ',
            b'{"a\\u0062":1,"a":2,"b":3}',
        ],
    )  # fmt: skip
    def test_payloads_are_never_written_anew(self, payload: bytes) -> None:
        data = b'{"id":"1","ts":"2025-10-18T19:55:00Z","to":"a","type":"t","payload":%b}' % payload
        assert body(data) == data

    @pytest.mark.parametrize("levels", [63, 64])
    def test_nesting_up_to_the_bound(self, levels: int) -> None:
        data = raw(payload=...)[:-1] + b',"payload":%b%b}' % (b"[" * (levels - 1), b"]" * (levels - 1))
        assert body(data) == data

    def test_brackets_in_strings_are_not_nesting(self) -> None:
        data = raw(payload='[{"' * 100 + "\\" * 7)
        assert body(data) == data

    def test_up_to_a_mebibyte(self) -> None:
        fill = LIMITS.envelope_max - len(raw(payload=""))
        data = raw(payload="x" * fill)
        assert len(data) == 1024 * 1024
        assert body(data) == data
        assert code(raw(payload="x" * (fill + 1))) == "TooLarge"


class TestRefused:
    @pytest.mark.parametrize("field", ["id", "ts", "type", "payload"])
    def test_a_missing_field_is_named(self, field: str) -> None:
        refusal = checked(raw(**{field: ...}))
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.ref) == ("InvalidEnvelope", field)
        assert field in refusal.message

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", 1), ("id", None), ("id", ""), ("id", "x" * 257), ("id", ["e"]),
            ("ts", 1), ("ts", None), ("type", 1), ("type", ""), ("type", "t" * 257),
            ("to", 1), ("to", None), ("from_", 1), ("schema", 1), ("corr", 1), ("corr", ["c"]),
            ("version", "1"), ("version", 1.5), ("version", 1.0), ("version", True),
            ("refs", "T"), ("refs", [1]), ("refs", [None]), ("tags", {}), ("tags", [["x"]]),
            ("headers", []), ("headers", "x"), ("headers", {"k": {}}), ("headers", {"k": []}),
        ],
    )  # fmt: skip
    def test_a_wrong_type_or_length_is_named(self, field: str, value: object) -> None:
        refusal = checked(raw(**{field: value}))
        assert isinstance(refusal, Refusal)
        assert refusal.code == "InvalidEnvelope"
        assert (refusal.ref or "").startswith(field.rstrip("_"))

    @pytest.mark.parametrize(
        "ts",
        [
            "", "yesterday", "2025-10-18", "19:55:00Z", "2025-10-18T19:55:00", "2025-10-18T19:55Z",
            "2025-02-30T00:00:00Z", "2025-13-01T00:00:00Z", "2025-10-18T24:00:00Z", "2025-10-18T19:60:00Z",
            "2025-10-18T19:55:00+99:00", "2025-10-18T19:55:00.Z", "1760817300", "0000-01-01T00:00:00Z",
            "12025-10-18T19:55:00Z", " 2025-10-18T19:55:00Z",
        ],
    )  # fmt: skip
    def test_times_without_date_clock_and_offset(self, ts: str) -> None:
        refusal = checked(raw(ts=ts))
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.ref) == ("InvalidEnvelope", "ts")

    @pytest.mark.parametrize(
        "payload",
        [
            b"NaN", b"Infinity", b"-Infinity", b"nan", b"+1", b"01", b"1.", b".5", b"0x1", b"'a'", b"undefined",
            b"[1,]", b'{"a":1,}', b"{,}", b'{"a"}', b"{1:2}", b'"', b'"\x01"', b'"\n"', b'"\\x41"', b'"\\u12"',
            b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\udc00\\ud800"', b"// no", b"", b"1 2", b"1e999",
        ],
    )  # fmt: skip
    def test_what_is_not_json(self, payload: bytes) -> None:
        data = raw(payload=...)[:-1] + b',"payload":' + payload + b"}"
        assert code(data) in ("InvalidJSON", "InvalidEnvelope")

    @pytest.mark.parametrize("data", [b"", b" ", b"null", b"1", b'"x"', b"[]", b"[{}]", b"{}", b"{", b"\xef\xbb\xbf{}"])
    def test_what_is_not_an_object(self, data: bytes) -> None:
        assert code(data) in ("InvalidJSON", "InvalidEnvelope")

    @pytest.mark.parametrize(
        "extra",
        [
            b'"id":"e-91a"', b'"id":"other"', b'"id" : "spaced"', b'"\\u0069d":"escaped"', b'"payload":{}',
            b'"x":1,"x":1', b'"x":{"a":1,"a":1}', b'"x":[[{"k":{"a":1,"b":2,"a":3}}]]', b'"x":{"a":1,"\\u0061":1}',
            b'"x":{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}', b'"x":{"":1,"":2}', b'"headers":{"h":1}',
            b'"x":{"a":1,"a":1,"pad":1e6}', b'"x":{"a":1,"a":1,"b":1e-7}', b'"x":{"a":1,"a":1},"pad":[1e2,1e4]',
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("compact", [True, False])
    def test_a_key_given_twice_at_any_level(self, extra: bytes, compact: bool) -> None:
        base = msgspec.json.encode(GOOD) if compact else raw()
        assert code(base[:-1] + b"," + extra + b"}") == "InvalidJSON"

    def test_a_repeated_key_hidden_by_numbers_that_grow(self) -> None:
        """Encoded again, `1e6` is longer: by just the bytes that the repeated key loses."""
        base = msgspec.json.encode(GOOD)
        for pad in range(12):
            data = base[:-1] + b',"x":{"a":1,"a":1},"y":[%b]}' % b"1e%d" % pad
            assert code(data) == "InvalidJSON"

    @pytest.mark.promise("Security", "size and depth are checked before parsing")
    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    @pytest.mark.parametrize("levels", [64, 65, 1_000, 100_000])
    def test_nesting_beyond_the_bound(self, opening: bytes, levels: int) -> None:
        closing = b"]" if opening == b"[" else b"}"
        inside = b"" if opening == b"[" else b"1"
        data = raw(payload=...)[:-1] + b',"payload":%b%b%b}' % (opening * levels, inside, closing * levels)
        assert code(data) == "InvalidJSON"


class TestAddress:
    def test_a_missing_one_is_filled_and_nothing_else_moves(self) -> None:
        assert body(raw(to=...), "b") == b'{"to":"b",' + raw(to=...)[1:]

    def test_it_is_escaped_as_json_wants(self) -> None:
        assert json.loads(body(raw(to=...), 'a"\\é'))["to"] == 'a"\\é'

    def test_a_contradiction_is_refused(self) -> None:
        assert code(raw(to="agents/Other/inbox"), "agents/Jen/inbox") == "AddressMismatch"

    @pytest.mark.parametrize("other", ["A", "a ", "a/", ""])
    def test_equal_means_equal(self, other: str) -> None:
        assert code(raw(to=other)) == "AddressMismatch"

    def test_white_space_before_the_first_member_is_kept(self) -> None:
        data = b"{ \n" + raw(to=...)[1:]
        assert body(data, "b") == b'{"to":"b",' + data[1:]


class TestSender:
    def test_an_agents_token_fills_it(self) -> None:
        record = checked(raw(from_=...), principal=JEN)
        assert isinstance(record, Record)
        assert (record.sender, json.loads(record.body)["from"]) == ("Jen", "Jen")

    def test_both_can_be_filled_at_once(self) -> None:
        filled = json.loads(body(raw(from_=..., to=...), principal=JEN))
        assert (filled["from"], filled["to"]) == ("Jen", "a")

    @pytest.mark.parametrize("sender", ["Jen", "agents/Jen", "agents/Jen/outbox"])
    def test_an_agent_may_name_itself(self, sender: str) -> None:
        assert body(raw(from_=sender), principal=JEN) == raw(from_=sender)

    @pytest.mark.parametrize("sender", ["architect", "jen", "agents/Jenny", "agents/Jenny/outbox", "Jen ", ""])
    def test_an_agent_may_not_name_another(self, sender: str) -> None:
        assert code(raw(from_=sender), principal=JEN) == "Forbidden"

    def test_null_is_no_way_around(self) -> None:
        assert code(raw(from_=None), principal=JEN) == "InvalidEnvelope"

    def test_other_tokens_may_say_what_they_like(self) -> None:
        assert body(raw(from_="anybody")) == raw(from_="anybody")

    @pytest.mark.promise("Security", "`system/` and `pipeline/` senders are the server's own")
    @pytest.mark.parametrize("principal", [ANONYMOUS, OPERATOR, JEN])
    @pytest.mark.parametrize("sender", ["system/courier", "pipeline/x", "system/"])
    def test_the_senders_of_the_server_are_reserved(self, principal: Principal, sender: str) -> None:
        assert code(raw(from_=sender), principal=principal) == "Forbidden"
        composed = compose({**json.loads(raw()), "from": sender}, principal, LIMITS)
        assert isinstance(composed, Refusal) and composed.code == "Forbidden"


class TestMany:
    """`parse_all` says what `parse` says of each, or that one of them is refused."""

    @pytest.mark.parametrize("count", [1, 2, HEADS_MAX, HEADS_MAX + 1, 3 * HEADS_MAX])
    @pytest.mark.parametrize("principal", [ANONYMOUS, JEN])
    def test_each_is_what_it_is_alone(self, count: int, principal: Principal) -> None:
        raws = [raw(id=f"e-{n}", to=... if n % 3 else "a", from_=..., payload=[n] * n) for n in range(count)]
        together = parse_all(raws, "a", principal, LIMITS)
        alone = [parse(one, "a", principal, LIMITS) for one in raws]
        assert [msgspec.structs.asdict(one) for one in together or ()] == [
            msgspec.structs.asdict(one) for one in alone if isinstance(one, Record)
        ]
        assert len(alone) == count

    @pytest.mark.parametrize("place", [0, 7, HEADS_MAX])
    @pytest.mark.parametrize(
        "bad",
        [
            raw(id=...), raw(id=""), raw(type="t" * 1_000), raw(to="b"), raw(from_="pipeline/me"), raw(ts="soon"),
            raw(payload="x" * LIMITS.envelope_max), raw(payload=...)[:-1] + b',"payload":%b}' % (b"[" * 64 + b"]" * 64),
            b"[]", b"5", b"null",
        ],
    )  # fmt: skip
    def test_one_that_is_refused_is_found_anywhere(self, bad: bytes, place: int) -> None:
        assert isinstance(parse(bad, "a", ANONYMOUS, LIMITS), Refusal)
        raws = [raw(id=str(n)) for n in range(HEADS_MAX + 3)]
        raws[place] = bad
        assert parse_all(raws, "a", ANONYMOUS, LIMITS) is None

    @pytest.mark.parametrize("principal", [ANONYMOUS, OPERATOR, JEN])
    @pytest.mark.parametrize("kinds", list(product(["", "x", "y"], repeat=2)))
    @pytest.mark.parametrize("senders", list(product([..., None, "", JEN.agent, "stranger"], repeat=2)))
    def test_one_is_accepted_after_another_if_it_is_alone(
        self, principal: Principal, kinds: tuple[str, str], senders: tuple[object, object]
    ) -> None:
        raws = [raw(id=str(n), to="a", type=kinds[n], from_=senders[n]) for n in range(2)]
        alone = [parse(one, "a", principal, LIMITS) for one in raws]
        together = parse_all(raws, "a", principal, LIMITS)
        is_refused = any(isinstance(one, Refusal) for one in alone)
        assert (together is None) == is_refused
        assert is_refused or list(map(repr, together or ())) == list(map(repr, alone))

    def test_many_brackets_are_no_depth(self) -> None:
        raws = [raw(id=str(n), payload=[[[1], [2]], {"a": {}}] * 3) for n in range(HEADS_MAX)]
        assert len(parse_all(raws, "a", ANONYMOUS, LIMITS) or ()) == HEADS_MAX


class TestDeadLetters:
    CAUSE = Cause("maxDeliveries", "a", 3, 1_760_817_300_123_000, "boom")

    def test_a_letter_says_why_and_keeps_the_rest(self) -> None:
        letter = json.loads(bury(raw(), self.CAUSE))
        header = letter["headers"].pop("x-courier")
        assert letter == GOOD
        assert header == {
            "reason": "maxDeliveries",
            "stream": "a",
            "attempts": 3,
            "firstTs": "2025-10-18T19:55:00.123Z",
            "lastError": "boom",
        }

    @pytest.mark.parametrize("headers", [..., {"k": 1}])
    def test_compact_envelopes_come_back_byte_for_byte(self, headers: object) -> None:
        data = msgspec.json.encode({**GOOD, "n": msgspec.Raw(b"1e400")})
        if headers is ...:
            data = data.replace(b'"headers":{"priority":"normal"},', b"")
        assert revive(bury(data, self.CAUSE)) == data

    def test_numbers_that_no_parser_holds_are_kept(self) -> None:
        data = raw(payload=...)[:-1] + b',"payload":' + b"1" * 5_000 + b"}"
        assert b"1" * 5_000 in bury(data, self.CAUSE)


class TestNames:
    def test_a_short_address_is_an_agents_inbox(self) -> None:
        assert (inbox("Jen"), inbox("agents/Jen/inbox")) == ("agents/Jen/inbox", "agents/Jen/inbox")

    def test_times_for_people(self) -> None:
        assert rfc3339(1_760_817_300_123_456) == "2025-10-18T19:55:00.123Z"


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.promise("Benchmarks and robustness", "codecs hold under hypothesis")
@given(
    extra=st.dictionaries(st.text(min_size=1).filter(lambda key: key not in GOOD), values, max_size=3),
    payload=values,
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    leave_to=st.booleans(),
)
def test_whatever_is_accepted_keeps_its_bytes(
    extra: dict[str, Any], payload: Any, indent: int | None, ascii_only: bool, leave_to: bool
) -> None:
    envelope = {**GOOD, **extra, "payload": payload}
    if leave_to:
        del envelope["to"]
    try:
        data = json.dumps(envelope, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    answer = checked(data)
    if isinstance(answer, Refusal):
        assert answer.code == "InvalidJSON"
        assert b"\\ud" in data, "only half a character is refused"
    elif leave_to:
        assert answer.body == b'{"to":"a",' + data[1:]
    else:
        assert answer.body == data


@pytest.mark.promise("Benchmarks and robustness", "codecs hold under hypothesis")
@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode(errors="replace")))
@example(b"\xff")
@example(b'{"id":"1","ts":"x"')
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    assert isinstance(checked(data), Refusal)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_envelope_is_refused_or_still_whole(damage: list[tuple[int, int]]) -> None:
    data = bytearray(raw())
    for place, byte in damage:
        data[place % len(data)] = byte
    answer = checked(bytes(data))
    if isinstance(answer, Record):
        assert answer.body.endswith(bytes(data)[1:])
        json.loads(answer.body)


def encoded(**members: object) -> bytes:
    return msgspec.json.encode({"id": "1", "payload": {"partitionKey": "not this"}, **members})


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ({}, None),
        ({"partitionKey": None}, None),
        ({"headers": None}, None),
        ({"headers": {"partitionKey": "h"}}, "h"),
        ({"partitionKey": None, "headers": {"partitionKey": "h"}}, "h"),
        ({"partitionKey": "e", "headers": {"partitionKey": "h"}}, "e"),
        ({"partitionKey": "e", "headers": {"partitionKey": 7}}, "e"),
        ({"partitionKey": "ü" * KEY_MAX}, "ü" * KEY_MAX),
    ],
)
def test_the_key_is_the_envelopes_own_or_that_of_its_headers(members: dict[str, object], key: str | None) -> None:
    assert partition_key(encoded(**members)) == key


@pytest.mark.promise("Streams", "a bad key is rejected with its field")
@pytest.mark.parametrize("key", ["", "x" * (KEY_MAX + 1), 0, 1.5, False, [], {}])
@pytest.mark.parametrize("where", ["partitionKey", "headers.partitionKey"])
def test_another_key_is_refused_with_its_field(key: object, where: str) -> None:
    members = {"partitionKey": key} if where == "partitionKey" else {"headers": {"partitionKey": key}}
    refusal = partition_key(encoded(**members))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.ref) == ("InvalidEnvelope", where)


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        ("high", 8), ("normal", 5), ("low", 2), (0, 0), (9, 9), ("0", 0), ("9", 9),
        (10, 5), (-1, 5), ("10", 5), ("²", 5), ("High", 5), ("", 5), (True, 5), (3.0, 5), (None, 5),
    ],
)  # fmt: skip
def test_priority_is_a_name_or_a_digit_and_anything_else_is_normal(asked: object, level: int) -> None:
    assert priority(encoded(headers={"priority": asked})) == level


def test_no_headers_are_normal() -> None:
    assert priority(encoded()) == priority(encoded(headers=None)) == priority(encoded(headers={})) == 5
