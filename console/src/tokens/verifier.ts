// Verifies a token stream: which message is next, which are duplicates, and when to request missing ones.
//
// It uses no socket and no clock: `take` receives messages, `step` the time. It returns a message only if its MAC proves that it is the next
// one. It drops duplicates. Any other message is only counted, and triggers requests for the messages after the last MAC, with backoff, until
// the attempts are used up. The rules are those of the Python reader, and tests compare the two.

import { Chain, type Format, type Suite, toHex } from "./chain.ts";
import { arrival, type Complete, type Failure, type Payload, readBlock, readChunk, readPayload, readPrev } from "./messages.ts";
import { REASONS } from "./segments.ts";

/** Timeouts and limits of a reader. */
export interface RetryOptions {
  readonly resumeFirstMs: number;
  readonly resumeLongestMs: number;
  readonly resumeTriesMax: number;
  /** Attempts before the first message. Each one returns all that the relay has, so a few are enough. */
  readonly beginningTriesMax: number;
  /** Silence after which the reader checks for lost messages. Publishers send a heartbeat every 5 seconds. */
  readonly probeMs: number;
  /** Silence after which a started stream counts as truncated. */
  readonly idleMs: number;
  readonly tamperedMax: number;
  readonly rememberedMax: number;
}

export const RETRY_OPTIONS: RetryOptions = {
  resumeFirstMs: 100,
  resumeLongestMs: 5_000,
  resumeTriesMax: 7,
  beginningTriesMax: 3,
  probeMs: 12_000,
  idleMs: 30_000,
  tamperedMax: 1_000,
  rememberedMax: 4_096,
};

/** Messages are missing, and the relay did not deliver them. */
export interface Gap {
  readonly kind: "gap";
  /** The relay reports that it no longer has them. */
  readonly isGone: boolean;
  /** Nothing was read, so the beginning is missing. */
  readonly isBeginning: boolean;
}

/** Messages in place of the next one are not from the publisher, or the key belongs to another stream. */
export interface Tampered {
  readonly kind: "tampered";
  readonly count: number;
  readonly isBeginning: boolean;
}

/** The stream stopped without an end message. */
export interface Truncated {
  readonly kind: "truncated";
}

/** The publisher sent a message that cannot be decoded. */
export interface Unreadable {
  readonly kind: "unreadable";
  readonly message: string;
}

export type Ending = Complete | Failure | Gap | Tampered | Truncated | Unreadable;

/** The user continued after missing messages. */
export interface Skipped {
  readonly kind: "skipped";
}

export interface Counts {
  accepted: number;
  duplicates: number;
  /** Messages that follow an unknown one. */
  ahead: number;
  tampered: number;
  /** Messages of other streams. */
  foreign: number;
  asked: number;
  gone: number;
}

export class StreamVerifier {
  readonly counts: Counts = { accepted: 0, duplicates: 0, ahead: 0, tampered: 0, foreign: 0, asked: 0, gone: 0 };
  ending: Ending | undefined;
  format: Format | undefined;
  private readonly topic: string;
  private readonly options: RetryOptions;
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
  /** Distinct forged messages, and those after a gap. The relay replays what it holds, so counters would count them repeatedly. */
  private readonly forged = new Set<string>();
  private readonly behind = new Set<string>();

  constructor(nowMs: number, topic: string, key: Uint8Array, suite: Suite, options: RetryOptions = RETRY_OPTIONS) {
    this.topic = topic;
    this.options = options;
    this.makeChains = () => ({
      chunk: new Chain("chunk", key, topic, suite),
      block: new Chain("block", key, topic, suite),
    });
    this.chains = this.makeChains();
    this.goodMs = nowMs;
    this.rest(nowMs);
  }

  /** The last verified MAC. */
  get mark(): Uint8Array | undefined {
    return this.chains.block.state ?? this.chains.chunk.state;
  }

  /** Distinct forged messages. */
  get tampered(): number {
    return this.forged.size;
  }

  /** Distinct messages after a gap. */
  get ahead(): number {
    return this.behind.size;
  }

  /** Distinct messages that arrived and are not verified. */
  get doubtful(): number {
    return this.forged.size + this.behind.size;
  }

  /** Whether a message is missing and requested. */
  get isAsking(): boolean {
    return this.isInDoubt && this.ending === undefined;
  }

  /** Whether a forged message arrived and no verified one since. */
  get isTampered(): boolean {
    return this.isInDoubt && this.recentlyTampered > 0;
  }

  /** The payloads of a message if it is the next one. A terminal payload sets `ending` instead. */
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

  /** The relay reports that it does not know a MAC. */
  gone(mark: string): void {
    if (this.mark === undefined || mark !== toHex(this.mark)) return;
    this.counts.gone += 1;
    this.isGone = true;
  }

  /** Whether to request the messages after `mark` now. Sets `ending` when the attempts are used up. */
  step(nowMs: number): boolean {
    if (this.ending !== undefined) return false;
    const hasBegun = this.mark !== undefined || this.isInDoubt;
    if (hasBegun && nowMs - this.goodMs >= this.options.idleMs) {
      this.ending = this.isInDoubt ? this.broken() : { kind: "truncated" };
      return false;
    }
    if (!hasBegun || nowMs < this.nextMs) return false;
    const triesMax = this.mark === undefined ? this.options.beginningTriesMax : this.options.resumeTriesMax;
    if (this.isInDoubt && this.tries >= triesMax) {
      this.ending = this.broken();
      return false;
    }
    this.nextMs = nowMs + this.waitMs(this.isInDoubt ? this.options.resumeFirstMs : this.options.probeMs);
    this.tries += 1;
    this.counts.asked += 1;
    return true;
  }

  /** Restart the timers after a reconnect or a suspended page: the silence was not the publisher's. */
  resetTimers(nowMs: number): void {
    if (this.isInDoubt) this.goodMs = nowMs;
    else this.rest(nowMs);
  }

  /** Retry after an ending that the publisher did not send; with `skip`, continue after the missing messages. */
  reopen(nowMs: number, skip: boolean): void {
    if (this.ending === undefined || this.ending.kind === "complete" || this.ending.kind === "failure") return;
    this.ending = undefined;
    this.isSkipping = skip;
    this.rest(nowMs);
  }

  /** Read another stream of the same topic and key. MACs already read are kept, so a replay does not count as a new stream. */
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
      // A chunk MAC truncated to 16 bytes is a valid block MAC, so this may be a disguised chunk.
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

  /** Whether a message after an unknown one may be accepted: once, and only after `reopen` with `skip`. */
  private mayJump(chain: Chain, prev: Uint8Array): boolean {
    return this.isSkipping && !this.seen.has(toHex(prev)) && toHex(prev) !== toHex(chain.prev);
  }

  /** Count a message that is not the next one, and schedule a request for the missing ones. */
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
      if (this.recentlyTampered >= this.options.tamperedMax) {
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
      this.nextMs = nowMs + this.options.resumeFirstMs;
    }
  }

  /** Remember a MAC, and evict the oldest at the limit. */
  private note(names: Set<string>, name: string): void {
    names.add(name);
    if (names.size <= this.options.rememberedMax) return;
    for (const oldest of names) {
      names.delete(oldest);
      break;
    }
  }

  /** Reset to the verified state. */
  private rest(nowMs: number): void {
    this.goodMs = nowMs;
    this.isInDoubt = false;
    this.isGone = false;
    this.tries = 0;
    this.recentlyTampered = 0;
    this.behind.clear();
    this.nextMs = nowMs + this.waitMs(this.options.probeMs);
  }

  private waitMs(firstMs: number): number {
    return Math.min(firstMs * 2 ** Math.min(this.tries, 20), Math.max(this.options.resumeLongestMs, firstMs));
  }

  private broken(): Ending {
    const isBeginning = this.mark === undefined;
    return this.recentlyTampered > 0
      ? { kind: "tampered", count: this.recentlyTampered, isBeginning }
      : { kind: "gap", isGone: this.isGone, isBeginning };
  }
}
