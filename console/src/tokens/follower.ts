// A reader's place in a token stream: which message is next, which came before, and what to do when one is missing.
//
// It knows no socket and no clock: messages are given to `take`, time to `step`. Only what a MAC proves to be next is given out. A message
// that was accepted before is dropped; one that is not next changes nothing but counts, and makes us ask for what followed our last
// MAC, less and less often, until no try brought it. The rules are those of Penstock's Python reader, and the tests compare the two.

import { Chain, type Format, type Suite, toHex } from "./chain.ts";
import { arrival, type Complete, type Failure, type Payload, readBlock, readChunk, readPayload, readPrev } from "./messages.ts";
import { REASONS } from "./segments.ts";

/** How long a reader waits, and how often it asks. */
export interface Patience {
  readonly resumeFirstMs: number;
  readonly resumeLongestMs: number;
  readonly resumeTriesMax: number;
  /** The same where nothing was read yet: each try brings all that the relay has, so a few of them tell. */
  readonly beginningTriesMax: number;
  /** Silence after which we ask whether the last messages were lost: publishers that live are heard every 5 seconds. */
  readonly probeMs: number;
  /** Silence after which a stream that had begun counts as cut off. */
  readonly idleMs: number;
  readonly tamperedMax: number;
  readonly rememberedMax: number;
}

export const PATIENCE: Patience = {
  resumeFirstMs: 100,
  resumeLongestMs: 5_000,
  resumeTriesMax: 7,
  beginningTriesMax: 3,
  probeMs: 12_000,
  idleMs: 30_000,
  tamperedMax: 1_000,
  rememberedMax: 4_096,
};

/** Messages are missing, and asking for them did not help. */
export interface Gap {
  readonly kind: "gap";
  /** The relay says that it does not have them any more. */
  readonly isGone: boolean;
  /** Nothing was read at all, so it is the beginning that is missing. */
  readonly isBeginning: boolean;
}

/** What arrives instead of the next message was not made by the publisher, or the key is another stream's. */
export interface Tampered {
  readonly kind: "tampered";
  readonly count: number;
  readonly isBeginning: boolean;
}

/** The stream stopped without saying that it is over. */
export interface Truncated {
  readonly kind: "truncated";
}

/** The publisher sent what we cannot read. */
export interface Unreadable {
  readonly kind: "unreadable";
  readonly message: string;
}

export type Ending = Complete | Failure | Gap | Tampered | Truncated | Unreadable;

/** Somebody chose to go on behind what is missing. */
export interface Skipped {
  readonly kind: "skipped";
}

export interface Counts {
  accepted: number;
  duplicates: number;
  /** Messages with an unknown one before them. */
  ahead: number;
  tampered: number;
  /** Messages that are none of this stream. */
  foreign: number;
  asked: number;
  gone: number;
}

export class Follower {
  readonly counts: Counts = { accepted: 0, duplicates: 0, ahead: 0, tampered: 0, foreign: 0, asked: 0, gone: 0 };
  ending: Ending | undefined;
  format: Format | undefined;
  private readonly topic: string;
  private readonly patience: Patience;
  private readonly makeChains: () => Record<Format, Chain>;
  private chains: Record<Format, Chain>;
  private readonly seen = new Set<string>();
  private goodMs: number;
  private nextMs = 0;
  private tries = 0;
  private isInDoubt = false;
  private isGone = false;
  private isSkipping = false;
  private recentlyTampered = 0;
  /** Messages made by others, and those behind a gap, each once: the relay sends what it holds again and again. */
  private readonly forged = new Set<string>();
  private readonly behind = new Set<string>();

  constructor(nowMs: number, topic: string, key: Uint8Array, suite: Suite, patience: Patience = PATIENCE) {
    this.topic = topic;
    this.patience = patience;
    this.makeChains = () => ({
      chunk: new Chain("chunk", key, topic, suite),
      block: new Chain("block", key, topic, suite),
    });
    this.chains = this.makeChains();
    this.goodMs = nowMs;
    this.rest(nowMs);
  }

  /** The last good MAC. */
  get mark(): Uint8Array | undefined {
    return this.chains.block.state ?? this.chains.chunk.state;
  }

  /** Messages that somebody else made, each once. */
  get tampered(): number {
    return this.forged.size;
  }

  /** Messages that wait behind a gap, each once. */
  get ahead(): number {
    return this.behind.size;
  }

  /** Messages that arrived and of which we do not know that they are good. */
  get doubtful(): number {
    return this.forged.size + this.behind.size;
  }

  /** Something is missing, and is being asked for. */
  get isAsking(): boolean {
    return this.isInDoubt && this.ending === undefined;
  }

  /** What arrived in place of the next message was made by somebody else, and nothing good came since. */
  get isTampered(): boolean {
    return this.isInDoubt && this.recentlyTampered > 0;
  }

  /** The payloads of a message, if it is the next one; the terminal one becomes `ending` instead. */
  take(nowMs: number, bytes: Uint8Array): (Payload | Skipped)[] {
    if (this.ending !== undefined) return [];
    const arrived = arrival(bytes);
    if (arrived === undefined || (this.format !== undefined && arrived.format !== this.format)) {
      this.counts.foreign += 1;
      return [];
    }
    return arrived.format === "block"
      ? this.takeBlock(nowMs, arrived.frame, arrived.mac)
      : this.takeChunk(nowMs, arrived.frame);
  }

  /** The relay says that it does not know a mark. */
  gone(mark: string): void {
    if (this.mark === undefined || mark !== toHex(this.mark)) return;
    this.counts.gone += 1;
    this.isGone = true;
  }

  /** Whether something is to be asked for now, from `mark` on; sets `ending` when patience is at its end. */
  step(nowMs: number): boolean {
    if (this.ending !== undefined) return false;
    const hasBegun = this.mark !== undefined || this.isInDoubt;
    if (hasBegun && nowMs - this.goodMs >= this.patience.idleMs) {
      this.ending = this.isInDoubt ? this.broken() : { kind: "truncated" };
      return false;
    }
    if (!hasBegun || nowMs < this.nextMs) return false;
    const triesMax = this.mark === undefined ? this.patience.beginningTriesMax : this.patience.resumeTriesMax;
    if (this.isInDoubt && this.tries >= triesMax) {
      this.ending = this.broken();
      return false;
    }
    this.nextMs = nowMs + this.waitMs(this.isInDoubt ? this.patience.resumeFirstMs : this.patience.probeMs);
    this.tries += 1;
    this.counts.asked += 1;
    return true;
  }

  /** The link was lost and is back, or nobody looked for a while: the silence was not the publisher's. */
  rested(nowMs: number): void {
    if (this.isInDoubt) this.goodMs = nowMs;
    else this.rest(nowMs);
  }

  /** Try again after an ending that the publisher did not write; with `skip`, go on behind what is missing. */
  reopen(nowMs: number, skip: boolean): void {
    if (this.ending === undefined || this.ending.kind === "complete" || this.ending.kind === "failure") return;
    this.ending = undefined;
    this.isSkipping = skip;
    this.rest(nowMs);
  }

  /** Read another stream of the same topic and key. What was read before is remembered, so it is no new stream. */
  restart(nowMs: number): void {
    this.ending = undefined;
    this.format = undefined;
    this.isSkipping = false;
    this.chains = this.makeChains();
    this.rest(nowMs);
  }

  private takeBlock(nowMs: number, frame: Uint8Array, mac: Uint8Array): (Payload | Skipped)[] {
    const chain = this.chains.block;
    const name = toHex(mac);
    if (this.seen.has(name)) {
      this.counts.duplicates += 1;
      return [];
    }
    const prev = readPrev(frame);
    const isNext = chain.isNext(frame, mac);
    const isJump = !isNext && prev !== undefined && this.mayJump(chain, prev) && chain.follows(prev, frame, mac);
    if (!isNext && !isJump) {
      this.doubt(nowMs, name, prev, chain);
      return [];
    }
    const block = readBlock(frame);
    if (this.format === undefined && (block.kind === "fault" || block.payloads.length === 0)) {
      // A MAC of 16 bytes can be cut from one of 32, so this may be a chunk in disguise.
      this.doubt(nowMs, name, undefined, chain);
      return [];
    }
    if (block.kind === "fault") {
      this.ending = { kind: "unreadable", message: REASONS[block.reason] };
      return [];
    }
    this.format = "block";
    return this.accept(nowMs, chain, name, mac, block.payloads, isJump);
  }

  private takeChunk(nowMs: number, frame: Uint8Array): (Payload | Skipped)[] {
    const chunk = readChunk(frame);
    if (chunk.kind === "fault" || chunk.topic !== this.topic) {
      this.counts.foreign += 1;
      return [];
    }
    const chain = this.chains.chunk;
    const name = toHex(chunk.mac);
    if (this.seen.has(name)) {
      this.counts.duplicates += 1;
      return [];
    }
    const isNext = chain.isNext(chunk.data, chunk.mac);
    const isJump = !isNext && this.mayJump(chain, chunk.prev) && chain.follows(chunk.prev, chunk.data, chunk.mac);
    if (!isNext && !isJump) {
      this.doubt(nowMs, name, chunk.prev, chain);
      return [];
    }
    const payload = readPayload(chunk.data);
    if (payload.kind === "fault") {
      this.ending = { kind: "unreadable", message: REASONS[payload.reason] };
      return [];
    }
    this.format = "chunk";
    return this.accept(nowMs, chain, name, chunk.mac, [payload], isJump);
  }

  private accept(
    nowMs: number,
    chain: Chain,
    name: string,
    mac: Uint8Array,
    payloads: readonly Payload[],
    isJump: boolean,
  ): (Payload | Skipped)[] {
    chain.advance(mac);
    this.counts.accepted += 1;
    this.note(this.seen, name);
    this.isSkipping = false;
    this.rest(nowMs);
    const given: (Payload | Skipped)[] = isJump ? [{ kind: "skipped" }] : [];
    for (const payload of payloads) {
      if (payload.kind === "complete" || payload.kind === "failure") {
        this.ending = payload;
        break;
      }
      given.push(payload);
    }
    return given;
  }

  /** Whether a message behind an unknown one may be next: once, and only after somebody said so. */
  private mayJump(chain: Chain, prev: Uint8Array): boolean {
    return this.isSkipping && !this.seen.has(toHex(prev)) && toHex(prev) !== toHex(chain.prev);
  }

  /** A message is not the next one: note whether something is missing, and see to it that it is asked for. */
  private doubt(nowMs: number, name: string, prev: Uint8Array | undefined, chain: Chain): void {
    const before = prev === undefined ? undefined : toHex(prev);
    const isKnown =
      before === undefined ||
      before === toHex(chain.prev) ||
      before === toHex(chain.firstPrev) ||
      this.seen.has(before);
    if (isKnown) {
      this.counts.tampered += 1;
      this.recentlyTampered += 1;
      this.note(this.forged, name);
      if (this.recentlyTampered >= this.patience.tamperedMax) {
        this.ending = this.broken();
        return;
      }
    } else {
      this.counts.ahead += 1;
      this.note(this.behind, name);
    }
    if (!this.isInDoubt) {
      this.isInDoubt = true;
      if (this.mark === undefined) this.goodMs = nowMs;
      this.tries = 0;
      this.nextMs = nowMs + this.patience.resumeFirstMs;
    }
  }

  /** Remember a MAC, and forget the oldest at the bound. */
  private note(names: Set<string>, name: string): void {
    names.add(name);
    if (names.size <= this.patience.rememberedMax) return;
    for (const oldest of names) {
      names.delete(oldest);
      break;
    }
  }

  /** All is well, as far as we know. */
  private rest(nowMs: number): void {
    this.goodMs = nowMs;
    this.isInDoubt = false;
    this.isGone = false;
    this.tries = 0;
    this.recentlyTampered = 0;
    this.behind.clear();
    this.nextMs = nowMs + this.waitMs(this.patience.probeMs);
  }

  private waitMs(firstMs: number): number {
    return Math.min(firstMs * 2 ** Math.min(this.tries, 20), Math.max(this.patience.resumeLongestMs, firstMs));
  }

  private broken(): Ending {
    const isBeginning = this.mark === undefined;
    return this.recentlyTampered > 0
      ? { kind: "tampered", count: this.recentlyTampered, isBeginning }
      : { kind: "gap", isGone: this.isGone, isBeginning };
  }
}
