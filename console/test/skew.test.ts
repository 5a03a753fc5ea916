import assert from "node:assert/strict";
import { test } from "node:test";

import { updateSkew, serverTime } from "../src/skew.ts";

const NOON = Date.UTC(2026, 0, 1, 12);

test("a large clock difference is corrected, a small one is ignored", () => {
  updateSkew(new Date(NOON + 60_000).toUTCString(), NOON);
  assert.equal(serverTime(NOON), NOON + 60_500);
  updateSkew(null, NOON);
  updateSkew("no date", NOON);
  assert.equal(serverTime(NOON), NOON + 60_500, "an invalid header changes nothing");
  updateSkew(new Date(NOON + 1_000).toUTCString(), NOON);
  assert.equal(serverTime(NOON), NOON);
});
