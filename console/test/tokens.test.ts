// Token streams over a socket that breaks, with a clock that the tests turn.

import assert from "node:assert/strict";
import { test } from "node:test";

import { toHex } from "../src/tokens/chain.ts";
import { offered } from "../src/tokens/link.ts";
import { Listener, misfit, type Socket, type Surroundings } from "../src/tokens/listener.ts";
import { CHARACTERS_MAX, Transcript } from "../src/tokens/transcript.ts";
import { verdict } from "../src/tokens/verdict.ts";
import { KEY, press, TOPIC } from "./press.ts";

const WANTED = { topic: TOPIC, key: toHex(KEY), suite: "sha256" } as const;
const STORY = press([[{ token: "Once" }], [{ token: " upon" }, { token: " a" }], [{ heartbeat: true }], [{ token: " time" }], [{ complete: 4 }]]);
const MACS = STORY.map((message) => toHex(message.slice(-16)));

class Wire implements Socket {
  binaryType = "";
  onopen: (() => void) | null = null;
  onmessage: ((event: { readonly data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: string[] = [];
  isClosed = false;

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.isClosed = true;
  }

  deliver(...messages: readonly (Uint8Array | string)[]): void {
    for (const message of messages) this.onmessage?.({ data: typeof message === "string" ? message : message.slice().buffer });
  }
}

class World implements Surroundings {
  readonly wires: Wire[] = [];
  private ms = 0;
  private ticking: (() => void) | undefined;

  open(): Socket {
    const wire = new Wire();
    this.wires.push(wire);
    return wire;
  }

  now(): number {
    return this.ms;
  }

  every(_: number, run: () => void): () => void {
    this.ticking = run;
    return () => {
      this.ticking = undefined;
    };
  }

  pass(ms: number): void {
    for (let gone = 0; gone < ms; gone += 100) {
      this.ms += 100;
      this.ticking?.();
      // Whatever is opened meanwhile is open at once, and silent.
      const last = this.wires.at(-1);
      if (last !== undefined && !last.isClosed && last.sent.length === 0) last.onopen?.();
    }
  }

  get wire(): Wire {
    const last = this.wires.at(-1);
    assert.ok(last);
    return last;
  }
}

function begin(): { world: World; listener: Listener } {
  const world = new World();
  const listener = new Listener(WANTED, world, () => undefined);
  world.wire.onopen?.();
  return { world, listener };
}

test("a stream that nobody touched is shown whole and ends complete", () => {
  const { world, listener } = begin();
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...STORY);
  assert.equal(listener.transcript.plain(), "Once upon a time");
  assert.equal(listener.transcript.tokens, 4);
  assert.equal(listener.follower.counts.accepted, 5);
  assert.equal(verdict(listener).label, "Complete");
  assert.ok(world.wire.isClosed);
});

test("a lost socket goes on from the last mark", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 2));
  world.wire.onclose?.();
  assert.equal(verdict(listener).label, "Connection lost");
  world.pass(1_000);
  assert.equal(world.wires.length, 2);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC, resume: MACS[1] });
  world.wire.deliver(...STORY);
  assert.equal(listener.transcript.plain(), "Once upon a time");
  assert.equal(listener.follower.counts.duplicates, 2);
  assert.equal(listener.losses, 1);
});

test("a server that stays away is asked less and less often", () => {
  const { world } = begin();
  for (let lost = 0; lost < 40; lost += 1) {
    world.wires.at(-1)?.onclose?.();
    world.pass(1_000);
  }
  assert.ok(world.wires.length < 12, String(world.wires.length));
});

test("what is missing is asked for, and given up with a gap", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 2), ...STORY.slice(3));
  assert.equal(listener.transcript.plain(), "Once upon a");
  assert.equal(verdict(listener).label, "Asking again");
  assert.equal(listener.follower.doubtful, 2);
  world.pass(200);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC, resume: MACS[1] });
  world.wire.deliver(JSON.stringify({ gone: MACS[1] }));
  world.pass(29_000);
  assert.equal(verdict(listener).label, "Gap");
  assert.match(verdict(listener).text, /no longer has them/);
  assert.equal(listener.transcript.plain(), "Once upon a");
});

test("who chooses so goes on behind a gap, and sees where it was", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 1), ...STORY.slice(3));
  world.pass(29_000);
  assert.deepEqual(verdict(listener).offers, ["retry", "skip"]);
  listener.reopen(true);
  world.pass(100);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC });
  world.wire.deliver(...STORY.slice(3));
  assert.equal(listener.transcript.plain(), "Once\n[missing]\n time");
  assert.equal(verdict(listener).label, "Complete");
});

test("who keeps listening reads the next stream, and no stream twice", () => {
  const { world, listener } = begin();
  const second = press([[{ token: "Again" }], [{ complete: 1 }]]);
  const third = press([[{ token: "More" }], [{ token: "…" }]]);
  world.wire.deliver(...STORY);
  assert.deepEqual(verdict(listener).offers, ["next"]);
  listener.keepOn();
  world.pass(100);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC });
  world.wire.deliver(...STORY);
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...second, ...third, ...STORY, ...second);
  assert.equal(listener.transcript.plain().replaceAll(/\n\[.*\]\n/g, "|"), "Once upon a time|Again|More…");
  assert.equal(verdict(listener).label, "Live");
  assert.equal(world.wires.length, 2);
});

test("a late reader is told soon that the beginning is missing", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(2, 4));
  world.pass(3_000);
  assert.equal(verdict(listener).label, "Beginning missing");
  assert.equal(listener.transcript.plain(), "");
});

test("what another key made is never shown", () => {
  const { world, listener } = begin();
  world.wire.deliver(...press([[{ token: "lies" }], [{ complete: 1 }]], KEY.toReversed()));
  world.pass(5_000);
  assert.equal(listener.transcript.plain(), "");
  assert.equal(verdict(listener).label, "Not verified");
});

test("tampering is told while it lasts, and counted afterwards", () => {
  const { world, listener } = begin();
  const forged = press([[{ token: "Once" }], [{ token: " lies" }]], KEY.toReversed())[1]?.slice() ?? new Uint8Array();
  const mark = STORY[0]?.slice(-16) ?? new Uint8Array();
  forged.set(mark, 32); // it names our last MAC as the one before it
  world.wire.deliver(STORY[0] ?? "", forged);
  assert.equal(verdict(listener).label, "Tampered with");
  assert.equal(verdict(listener).gravity, "bad");
  world.wire.deliver(...STORY.slice(1, 3));
  assert.equal(verdict(listener).label, "Live");
  assert.match(verdict(listener).text, /1 message that the publisher did not make was dropped/);
  assert.equal(listener.transcript.plain(), "Once upon a");
});

test("a changed byte is never shown, and does not stop what follows", () => {
  const { world, listener } = begin();
  for (let at = 0; at < (STORY[1]?.length ?? 0); at += 1) {
    const changed = STORY[1]?.slice() ?? new Uint8Array();
    changed[at] = (changed[at] ?? 0) ^ 0x20;
    const fresh = begin();
    fresh.world.wire.deliver(STORY[0] ?? "", changed);
    assert.equal(fresh.listener.transcript.plain(), "Once", `byte ${at}`);
    fresh.world.wire.deliver(...STORY.slice(1));
    assert.equal(fresh.listener.transcript.plain(), "Once upon a time", `byte ${at}`);
  }
  world.wire.deliver(...STORY);
  assert.equal(listener.follower.doubtful, 0);
});

test("silence without an end is an end of its own", () => {
  const { world, listener } = begin();
  world.pass(60_000);
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...STORY.slice(0, 3));
  world.pass(31_000);
  assert.equal(verdict(listener).label, "Cut off");
});

test("a refusal is told in the server's words, and is not tried again", () => {
  const { world, listener } = begin();
  world.wire.deliver(JSON.stringify({ error: { code: "Forbidden", message: "not for you", hint: "sign in", retryable: false } }));
  world.wire.onclose?.();
  world.pass(60_000);
  assert.equal(world.wires.length, 1);
  assert.equal(verdict(listener).text, "not for you sign in");
});

test("the key is in nothing that is sent", () => {
  const { world } = begin();
  world.wire.deliver(...STORY.slice(0, 1), ...STORY.slice(2));
  world.pass(40_000);
  assert.ok(world.wires.length > 2);
  for (const text of world.wires.flatMap(({ sent }) => sent)) assert.ok(!text.includes(WANTED.key), text);
});

test("a link names topic, key and suite", () => {
  assert.deepEqual(offered(`#/tokens?topic=${TOPIC.toUpperCase()}&key=${WANTED.key}&suite=blake3`), { ...WANTED, suite: "blake3" });
  assert.equal(offered("#/tokens"), undefined);
  assert.equal(offered(`#/spaces?topic=${TOPIC}&key=${WANTED.key}`), undefined);
  assert.equal(misfit(WANTED), undefined);
  assert.match(misfit({ ...WANTED, topic: "ab" })?.message ?? "", /64/);
  assert.match(misfit({ ...WANTED, key: "zz".repeat(32) })?.message ?? "", /64/);
  assert.match(misfit({ ...WANTED, key: "00".repeat(32) })?.message ?? "", /zeros/);
});

test("a text without an end is kept within bounds, and says what was let go", () => {
  const transcript = new Transcript();
  const piece = "x".repeat(1_000);
  for (let index = 0; index < 1_000; index += 1) transcript.add([{ kind: "token", text: piece }]);
  const kept = transcript.plain().length;
  assert.ok(kept >= CHARACTERS_MAX && kept <= CHARACTERS_MAX * 1.25);
  assert.equal(kept + transcript.cut, 1_000_000);
});
