import assert from "node:assert/strict";
import { test } from "node:test";

import { learnSkew, serverTime } from "../src/skew.ts";

const NOON = Date.UTC(2026, 0, 1, 12);

test("a clock that is far off is put right, a small difference is none", () => {
  learnSkew(new Date(NOON + 60_000).toUTCString(), NOON);
  assert.equal(serverTime(NOON), NOON + 60_500);
  learnSkew(null, NOON);
  learnSkew("no date", NOON);
  assert.equal(serverTime(NOON), NOON + 60_500, "what says nothing changes nothing");
  learnSkew(new Date(NOON + 1_000).toUTCString(), NOON);
  assert.equal(serverTime(NOON), NOON);
});
