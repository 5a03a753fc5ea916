// SQL queries and their results.

import assert from "node:assert/strict";
import { test } from "node:test";

import { webAddress } from "../src/lake/progress.ts";
import { meanOf } from "../src/lake/steps.ts";
import { cellText, isNumeric, RECENT_MAX, quoted, addRecent, sample, toCsv } from "../src/lake/sql.ts";
import { visibleRows } from "../src/lake/window.ts";

test("the visible rows, with spacers for the others", () => {
  for (const rows of [0, 1, 10, 1_000]) {
    for (const scrolled of [-50, 0, 1, 290, 14_000, 29_000, 10 ** 9]) {
      const { from, to, above, below } = visibleRows(scrolled, 480, 29, rows);
      assert.ok(from >= 0 && from <= to && to <= rows);
      assert.equal(above + (to - from) * 29 + below, rows * 29);
      assert.ok(to - from <= 480 / 29 + 26);
    }
  }
  const { from, to } = visibleRows(14_500, 480, 29, 1_000);
  assert.ok(from <= 500 && to >= 517);
});

test("only web addresses become links", () => {
  assert.equal(webAddress("http://localhost:4040"), "http://localhost:4040/");
  assert.equal(webAddress("javascript:alert(1)"), undefined);
  assert.equal(webAddress("data:text/html,x"), undefined);
  assert.equal(webAddress("nonsense"), undefined);
  assert.equal(webAddress(null), undefined);
});

test("table names are quoted", () => {
  assert.equal(sample("events"), 'select * from "events" limit 50');
  assert.equal(quoted('a"b'), '"a""b"');
});

test("recent queries are kept without duplicates, newest first, up to a limit", () => {
  let past: readonly string[] = [];
  for (let index = 0; index < RECENT_MAX + 10; index += 1) past = addRecent(past, `select ${index}`);
  assert.equal(past.length, RECENT_MAX);
  past = addRecent(past, past.at(-1) ?? "");
  assert.equal(past.length, RECENT_MAX);
  assert.equal(new Set(past).size, RECENT_MAX);
});

test("values as text, and results as CSV without formulas", () => {
  assert.equal(cellText(null), "null");
  assert.equal(cellText(["a", 1]), '["a",1]');
  assert.ok(isNumeric("int64") && isNumeric("double") && !isNumeric("string") && !isNumeric(undefined));
  const answer = { columns: ["a", "b"], types: [], rows: [['say "hi", you', null], ["=1+1", -2]], truncated: false, ms: 1 };
  assert.equal(toCsv(answer), 'a,b\r\n"say ""hi"", you",\r\n\'=1+1,-2');
});

test("the steps of batches by table, longest first, as a mean", () => {
  const batch = (ms: number, steps: Record<string, number>) => ({ at_us: 1, rows: 10, ms, steps });
  const { ms, rows, steps } = meanOf([batch(300, { read: 20, "a.rows": 100, "a.commit": 40 }), batch(100, { read: 40, "types_x_v1.commit": 10, "b.commit": 0 })]);
  assert.deepEqual([ms, rows], [200, 10]);
  assert.deepEqual(steps.map(({ name, rows: made, commit, other, total }) => [name, made, commit, other, total]), [
    ["a", 50, 20, 0, 70],
    ["read", 0, 0, 30, 30],
    ["types_x_v1", 0, 5, 0, 5],
  ]);
  assert.deepEqual(meanOf([]), { ms: 0, rows: 0, steps: [] });
});
