import assert from "node:assert/strict";
import { test } from "node:test";

import { parseExact, parseTyped, pretty, written } from "../src/json.ts";
import { cellText, toCsv } from "../src/lake/sql.ts";
import { sorted } from "../src/order.ts";
import { decoded, href, parse } from "../src/router.ts";
import { withQuery } from "../src/request.ts";
import { bytes, count, plural, rate, span } from "../src/format.ts";
import { marked } from "../src/parts/prose.tsx";

test("counts are never rounded", () => {
  assert.equal(count(1_234_567), "1,234,567");
  assert.equal(count(106.495), "106.495");
  assert.equal(count(Number.MAX_SAFE_INTEGER), "9,007,199,254,740,991");
  assert.equal(count(undefined), "–");
  assert.equal(count(0), "0");
});

test("rates and durations have a suitable number of digits", () => {
  assert.deepEqual([0, 0.04, 0.5, 7.25, 99.95, 123.4, 1_500].map(rate), ["0", "0.04", "0.50", "7.3", "100.0", "123", "1,500"]);
  assert.deepEqual(
    [0, 0.463, 9.999, 12.3, 999, 1_500, 59_000, 65_000, 3_900_000, 200_000_000].map(span),
    ["0 ms", "0.46 ms", "10 ms", "12 ms", "999 ms", "1.5 s", "59 s", "1 min 5 s", "1 h 5 min", "2 d 7 h"],
  );
  assert.equal(span(-5), "−5 ms");
  assert.deepEqual([0, 999, 1_234, 5_600_000].map(bytes), ["0 B", "999 B", "1.23 kB", "5.6 MB"]);
  assert.equal(plural(1, "row"), "1 row");
  assert.equal(plural(1_000, "row"), "1,000 rows");
});

test("a route survives formatting and parsing, with any characters", () => {
  const names = ["queues", "a/b c?d#e%&=ü"];
  const query = { channel: "agents/*", text: 'say "hi" & go=1' };
  assert.deepEqual(parse(href(names, query)), { path: names, query });
  assert.equal(href([]), "#/");
  assert.equal(href(["tail"], { text: "", door: undefined }), "#/tail");
  assert.deepEqual(parse("#/a%ZZ"), { path: ["a%ZZ"], query: {} }, "an invalid escape is kept");
});

test("a query omits empty values and keeps zero", () => {
  assert.equal(withQuery("/v1/tail", { after: 0, door: "", corr: undefined, text: "a b" }), "/v1/tail?after=0&text=a+b");
  assert.equal(withQuery("/v1/tail", {}), "/v1/tail");
});

test("sorting is stable, and unknown values come last in both directions", () => {
  const rows = [{ n: 2, s: "b" }, { n: undefined, s: "u" }, { n: 10, s: "c" }, { n: 2, s: "a" }];
  assert.deepEqual(sorted(rows, ({ n }) => n, false).map(({ s }) => s), ["b", "a", "c", "u"]);
  assert.deepEqual(sorted(rows, ({ n }) => n, true).map(({ s }) => s), ["c", "b", "a", "u"]);
  assert.deepEqual(sorted(["x10", "x9"], (name) => name, false), ["x9", "x10"], "numbers in names are compared as numbers");
});

test("JSON is indented, any other text is unchanged", () => {
  assert.equal(pretty('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(pretty("{cut short"), "{cut short");
  assert.equal(pretty("plain"), "plain");
});

test("long numbers keep all digits when parsed, shown and typed", () => {
  const text = '{"id":12345678901234567890,"low":-9223372036854775808,"near":9007199254740991,"is":"9223372036854775807, \\"1\\":12345678901234567","x":[1e400,0.1]}';
  assert.equal(written(parseExact(text)), text.replace("1e400", "null"));
  assert.match(pretty(text), /"id": 12345678901234567890,\n/);
  const typed = parseTyped('{"order": 12345678901234567890}');
  assert.ok(typed.error === undefined);
  assert.equal(written({ to: "a", payload: typed.value }), '{"to":"a","payload":{"order":12345678901234567890}}');
  assert.ok(parseTyped("{'a': 12345678901234567890}").error);
  const answer = { columns: ["n"], types: ["int64"], rows: [[parseExact("-9223372036854775808")]], truncated: false, ms: 1 };
  assert.equal(cellText(answer.rows[0]?.[0]), "-9223372036854775808");
  assert.equal(toCsv(answer), "n\r\n-9223372036854775808");
});

test("an error in typed JSON has a position", () => {
  assert.deepEqual(parseTyped("[1]"), { value: [1] });
  assert.match(parseTyped('{"a": 1,\n oops}').error ?? "", /line 2, column 2/);
  assert.ok(parseTyped("  ").error);
});

test("text in backticks is code, and an unmatched backtick is plain text", () => {
  assert.deepEqual(marked("`demo/jobs` has had dead letters; run `penstock explain`"), [
    ["demo/jobs", true],
    [" has had dead letters; run ", false],
    ["penstock explain", true],
  ]);
  assert.deepEqual(marked("a ` alone"), [["a ` alone", false]]);
  assert.deepEqual(marked(""), []);
});

test("a path segment with an invalid escape is unchanged", () => {
  assert.equal(decoded("a%20b"), "a b");
  assert.equal(decoded("100%"), "100%");
});
