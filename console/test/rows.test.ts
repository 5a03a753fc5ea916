import assert from "node:assert/strict";
import { test } from "node:test";

import { csv, jsonLines } from "../src/downloads.ts";
import { Entries, filtersOf, instant, isGap, type Row, summary } from "../src/rows.ts";

export function row(offset: number, more: Partial<Row> = {}): Row {
  return { offset, recorded_at: "2026-01-01T00:00:00.000000Z", door: "courier", event: "enqueue", ...more };
}

test("the newest entries are kept, in order of arrival", () => {
  const entries = new Entries(100, 1_000_000);
  for (let offset = 0; offset < 1_000; offset += 7) {
    entries.push(Array.from({ length: 7 }, (_, index) => row(offset + index)));
    assert.ok(entries.length <= 100);
    const kept = entries.slice(0, entries.length).map((entry) => (isGap(entry) ? -1 : entry.offset));
    assert.deepEqual(kept, Array.from({ length: kept.length }, (_, index) => offset + 7 - kept.length + index));
    assert.equal(entries.dropped + entries.length, offset + 7);
  }
  assert.equal(entries.at(0), entries.slice(0, 1)[0]);
});

test("long bodies are evicted sooner, and the newest entry stays at any length", () => {
  const entries = new Entries(100, 1_000);
  entries.push([row(0, { body: "x".repeat(600) }), row(1, { body: "x".repeat(600) })]);
  assert.equal(entries.length, 1);
  entries.push([row(2, { body: "x".repeat(5_000) })]);
  assert.deepEqual(entries.slice(0, 9).map((entry) => !isGap(entry) && entry.offset), [2]);
});

test("times keep microseconds", () => {
  const before = instant("2026-01-01T00:00:00.000100Z");
  assert.ok(Math.abs(instant("2026-01-01T00:00:00.000350Z") - before - 0.25) < 1e-3);
  assert.equal(instant("2026-01-01T00:00:01Z"), Date.parse("2026-01-01T00:00:01Z"));
});

test("the summary of a row contains reason, timings or payload", () => {
  assert.equal(summary(row(1, { body: '{"id":"a","payload":{"x":[1, 2]},"corr":"c"}' })), '{"x":[1,2]}');
  assert.equal(summary(row(1, { body: '{"id":"a","payload": {"x":"cut sho' })), '{"x":"cut sho');
  const settled = { ref_at: "2026-01-01T00:00:00.000000Z", first_at: "2026-01-01T00:00:00.500000Z", recorded_at: "2026-01-01T00:00:02.500000Z" };
  assert.equal(summary(row(1, { event: "ack", ...settled })), "waited 500 ms, processed 2 s");
  assert.match(summary(row(1, { event: "nack", reason: "no ground", ...settled })), /^no ground \(waited/);
});

test("only filters are taken from a query", () => {
  assert.deepEqual(filtersOf({ door: "mew", text: "", state: "dead", corr: "x" }), { door: "mew", corr: "x" });
});

test("a download contains every row and no formulas", () => {
  const rows = [row(1, { id: "=cmd()", body: 'say "hi",\nthen', meta: { a: 1 } }), row(2, { bytes: -1 })];
  assert.deepEqual(jsonLines(rows).trimEnd().split("\n").map((line) => JSON.parse(line) as unknown), rows);
  const [head = "", ...rest] = csv(rows).split("\r\n");
  const first = rest[0] ?? "";
  assert.equal(head.split(",")[0], "offset");
  assert.ok(first.includes(",'=cmd(),"));
  assert.ok(first.endsWith('"{""a"":1}","say ""hi"",\nthen"'));
  assert.ok((rest[1] ?? "").includes(",-1,"), "a number stays a number");
});
