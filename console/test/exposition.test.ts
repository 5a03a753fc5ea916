import assert from "node:assert/strict";
import { test } from "node:test";

import { parseExposition, sumOf, valueOf } from "../src/exposition.ts";

const TEXT = `# HELP penstock_q_in_total Envelopes accepted
# TYPE penstock_q_in_total counter
penstock_q_in_total 9.007199254740991e+15
penstock_q_depth 12.0
penstock_q_lat_ms{quantile="0.5"} 2.303
penstock_q_lat_ms{quantile="0.99"} 106.495
penstock_space_frames_total{space="a"} 3.0
penstock_space_frames_total{space="b \\"quoted\\", with {braces} \\\\ and\\nlines"} 4.0
penstock_odd +Inf
not a line
`;

test("values equal those of the text to the digit", () => {
  const scrape = parseExposition(TEXT);
  assert.equal(valueOf(scrape, "penstock_q_in_total"), Number.MAX_SAFE_INTEGER);
  assert.equal(valueOf(scrape, "penstock_q_lat_ms", { quantile: "0.99" }), 106.495);
  assert.equal(valueOf(scrape, "penstock_odd"), Infinity);
});

test("labels are distinguished, unescaped and summed", () => {
  const scrape = parseExposition(TEXT);
  assert.equal(valueOf(scrape, "penstock_space_frames_total", { space: 'b "quoted", with {braces} \\ and\nlines' }), 4);
  assert.equal(sumOf(scrape, "penstock_space_frames_total"), 7);
});

test("a metric that the server does not report is undefined, not zero", () => {
  const scrape = parseExposition(TEXT);
  assert.equal(valueOf(scrape, "penstock_relay_up"), undefined);
  assert.equal(sumOf(scrape, "penstock_relay_up"), undefined);
  assert.equal(valueOf(scrape, "penstock_q_lat_ms", { quantile: "0.95" }), undefined);
});
