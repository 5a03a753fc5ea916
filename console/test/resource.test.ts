import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { connection, reachable, watchConnection } from "../src/connection.ts";
import { fetchJson, Failure } from "../src/request.ts";
import { Poller } from "../src/resource.ts";

const browser = globalThis as unknown as Record<string, unknown>;
const original = globalThis.fetch;
let listeners: (() => void)[] = [];
let page: { visibilityState: string; addEventListener: (_: string, listener: () => void) => void; removeEventListener: () => void };

beforeEach(() => {
  listeners = [];
  page = {
    visibilityState: "visible",
    addEventListener: (_, listener) => listeners.push(listener),
    removeEventListener: () => undefined,
  };
  browser["document"] = page;
});

afterEach(() => {
  browser["fetch"] = original;
  delete browser["document"];
});

function connectionState(): string {
  return connection.value.state;
}

async function turns(count = 20): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

test("one poller serves all users, stops with the last, and keeps its data when requests fail", async () => {
  let asked = 0;
  let fails = false;
  const poller = new Poller(async () => {
    asked += 1;
    if (fails) throw new Failure("Busy", "come again", 503);
    return asked;
  }, 60_000);
  const ends = [poller.use(), poller.use()];
  await turns();
  assert.equal(asked, 1);
  assert.equal(poller.data.value, 1);
  fails = true;
  poller.refresh();
  await turns();
  assert.equal(poller.data.value, 1);
  assert.equal(poller.failure.value?.status, 503);
  fails = false;
  poller.refresh();
  await turns();
  assert.equal(poller.failure.value, undefined);
  assert.equal(poller.data.value, 3);
  ends.forEach((end) => end());
  poller.refresh();
  await turns();
  assert.equal(asked, 3);
  assert.ok(!poller.isUsed);
});

test("a poller does not accumulate abort listeners", async (context) => {
  let listening = 0;
  for (const [method, change] of [["addEventListener", 1], ["removeEventListener", -1]] as const) {
    const real = AbortSignal.prototype[method];
    context.mock.method(AbortSignal.prototype, method, function (this: AbortSignal, ...words: Parameters<typeof real>) {
      listening += change;
      real.apply(this, words);
    });
  }
  let asked = 0;
  const poller = new Poller(async () => (asked += 1), 60_000);
  const end = poller.use();
  for (let round = 0; round < 50; round += 1) {
    await turns(3);
    poller.refresh();
  }
  await turns();
  assert.ok(asked >= 50);
  assert.ok(listening <= 1, `${listening} listeners`);
  end();
});

test("a hidden page sends no requests", async () => {
  page.visibilityState = "hidden";
  let asked = 0;
  const poller = new Poller(async () => (asked += 1), 60_000);
  const end = poller.use();
  await turns();
  assert.equal(asked, 0);
  page.visibilityState = "visible";
  for (const listener of listeners) listener();
  await turns();
  assert.equal(asked, 1);
  end();
});

test("one probe checks an unreachable server, and all waiters continue when it is back", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  watchConnection();
  let isUp = false;
  const paths: string[] = [];
  browser["fetch"] = async (path: string) => {
    paths.push(path);
    if (!isUp) throw new TypeError("failed to fetch");
    return new Response("{}");
  };
  await assert.rejects(fetchJson("/v1/metrics"), (error) => error instanceof Failure && error.isUnreachable);
  await assert.rejects(fetchJson("/v1/peek"));
  assert.equal(connectionState(), "down");
  let isBack = false;
  void reachable().then(() => (isBack = true));
  for (let second = 0; second < 5; second += 1) {
    context.mock.timers.tick(1_000);
    await turns();
  }
  const probes = paths.filter((path) => path === "/health/live").length;
  assert.ok(probes >= 2 && probes <= 4, `${probes} probes in five seconds`);
  assert.ok(!isBack);
  isUp = true;
  context.mock.timers.tick(10_000);
  await turns();
  assert.ok(isBack);
  assert.equal(connectionState(), "back");
  context.mock.timers.tick(10_000);
  assert.equal(connectionState(), "up");
});

test("a failure has the server's code, message and hint", async () => {
  const refusal = { error: { code: "Unauthorized", message: "not signed in", hint: "give the token" } };
  browser["fetch"] = async () => new Response(JSON.stringify(refusal), { status: 403 });
  await assert.rejects(fetchJson("/v1/purge"), (error) => error instanceof Failure && error.code === "Unauthorized" && error.hint === "give the token");
  browser["fetch"] = async () => new Response("<h1>proxy</h1>", { status: 502, statusText: "Bad Gateway" });
  await assert.rejects(fetchJson("/v1/purge"), /502 Bad Gateway/);
});
