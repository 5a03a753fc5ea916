// One stream being listened to: a socket that is opened again when it is lost, the reader's place, and the text so far.
//
// A socket names one topic and then only listens, so what is missing is asked for with a new socket that says the last good mark. The key
// stays in here: what is sent is the topic and that mark.

import { fromHex, KEY_SIZE, type Suite, toHex } from "./chain.ts";
import { Follower, type Patience } from "./follower.ts";
import { Transcript } from "./transcript.ts";

const BACKOFF_FIRST_MS = 500;
const BACKOFF_LONGEST_MS = 10_000;
const TICK_MS = 100;
/** Over how long the pace is taken. */
const PACE_MS = 5_000;
/** A pause between two ticks after which the page itself was asleep. */
const ASLEEP_MS = 8_000;

export interface Wanted {
  readonly topic: string;
  /** 32 bytes in hexadecimal. */
  readonly key: string;
  readonly suite: Suite;
}

export interface Trouble {
  readonly message: string;
  readonly hint?: string | undefined;
}

export type Link = "connecting" | "open" | "lost" | "closed";

/** What a socket of the browser offers, as far as it is used. */
export interface Socket {
  binaryType: string;
  onopen: (() => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onclose: (() => void) | null;
  send(text: string): void;
  close(): void;
}

/** What the listener needs from the world around it. */
export interface Surroundings {
  open(): Socket;
  now(): number;
  every(ms: number, run: () => void): () => void;
}

/** What is wrong with what somebody typed, or nothing. */
export function misfit(wanted: Wanted): Trouble | undefined {
  if (!/^[0-9a-f]{64}$/.test(wanted.topic)) return { message: "A topic has 64 hexadecimal digits, in lower case." };
  const key = fromHex(wanted.key);
  if (key?.length !== KEY_SIZE) return { message: `A MAC key has ${2 * KEY_SIZE} hexadecimal digits.` };
  if (key.every((byte) => byte === 0)) return { message: "A key of zeros proves nothing." };
  return undefined;
}

export class Listener {
  readonly wanted: Wanted;
  readonly transcript = new Transcript();
  readonly follower: Follower;
  link: Link = "connecting";
  trouble: Trouble | undefined;
  /** Go on with the next stream of the topic where one ends. */
  isEndless = false;
  /** Sockets that were lost. */
  losses = 0;
  /** Tokens a second, lately. */
  pace: number | undefined;
  private readonly world: Surroundings;
  private readonly changed: () => void;
  private socket: Socket | undefined;
  private stopTicks: (() => void) | undefined;
  private backoffMs = BACKOFF_FIRST_MS;
  private againMs: number | undefined;
  private tickedMs: number;
  /** How many tokens there were at some moments of the last seconds. */
  private marks: readonly { readonly ms: number; readonly tokens: number }[] = [];
  /** Ask for all that the relay has, instead of what followed the mark, which it may not know any more. */
  private isWhole = false;

  constructor(wanted: Wanted, world: Surroundings, changed: () => void, patience?: Patience) {
    const key = fromHex(wanted.key);
    if (key === undefined) throw new RangeError("a key is written in hexadecimal digits");
    this.wanted = wanted;
    this.world = world;
    this.changed = changed;
    this.tickedMs = world.now();
    this.follower = new Follower(world.now(), wanted.topic, key, wanted.suite, patience);
    this.start();
  }

  /** Let go of everything. */
  close(): void {
    this.stopTicks?.();
    this.stopTicks = undefined;
    this.againMs = undefined;
    this.drop();
    this.link = "closed";
  }

  /** Listen again after an ending that the publisher did not write. */
  reopen(skip: boolean): void {
    this.close();
    this.follower.reopen(this.world.now(), skip);
    this.trouble = undefined;
    this.isWhole = skip;
    this.start();
    this.changed();
  }

  /** Listen to the streams that follow this one, too. */
  keepOn(): void {
    this.isEndless = true;
    this.close();
    this.next();
    this.start();
    this.changed();
  }

  private next(): void {
    const { ending } = this.follower;
    const word = ending?.kind === "complete" ? "complete" : ending?.kind === "failure" ? ending.code || "failed" : "";
    this.transcript.end(`${word}; another stream follows`);
    this.follower.restart(this.world.now());
  }

  /** The publisher's own end leads to the next stream, if that is wanted; every other end is one. */
  private settle(): void {
    const { ending } = this.follower;
    if (ending === undefined) return;
    if (this.isEndless && (ending.kind === "complete" || ending.kind === "failure")) this.next();
    else this.close();
  }

  private start(): void {
    this.connect();
    this.stopTicks = this.world.every(TICK_MS, () => this.tick());
  }

  private connect(): void {
    this.drop();
    this.againMs = undefined;
    const wasLost = this.link === "lost";
    this.link = "connecting";
    const socket = this.world.open();
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      const mark = this.isWhole ? undefined : this.follower.mark;
      const wish = { topic: this.wanted.topic, ...(mark === undefined ? {} : { resume: toHex(mark) }) };
      socket.send(JSON.stringify(wish));
      this.link = "open";
      if (wasLost) this.follower.rested(this.world.now());
      this.changed();
    };
    socket.onmessage = (event) => this.receive(event.data);
    socket.onclose = () => this.lost();
  }

  private drop(): void {
    const socket = this.socket;
    if (socket === undefined) return;
    this.socket = undefined;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }

  private lost(): void {
    this.socket = undefined;
    if (this.trouble !== undefined) {
      this.close();
    } else if (this.link !== "closed") {
      this.link = "lost";
      this.losses += 1;
      this.againMs = this.world.now() + this.backoffMs;
      this.backoffMs = Math.min(2 * this.backoffMs, BACKOFF_LONGEST_MS);
    }
    this.changed();
  }

  private receive(data: unknown): void {
    const now = this.world.now();
    if (data instanceof ArrayBuffer) {
      const accepted = this.follower.counts.accepted;
      this.transcript.add(this.follower.take(now, new Uint8Array(data)));
      if (this.follower.counts.accepted > accepted) {
        this.backoffMs = BACKOFF_FIRST_MS;
        this.isWhole = false;
      }
    } else if (typeof data === "string") {
      this.told(data);
    }
    this.settle();
    this.changed();
  }

  /** What the server says in words: a mark that is gone, or why it refuses. */
  private told(text: string): void {
    const said: unknown = parsed(text);
    const gone = field(said, "gone");
    if (typeof gone === "string") this.follower.gone(gone);
    const error = field(said, "error");
    if (error === undefined || field(error, "retryable") === true) return;
    const [message, hint] = [field(error, "message"), field(error, "hint")];
    this.trouble = {
      message: typeof message === "string" ? message : "The server refused.",
      hint: typeof hint === "string" ? hint : undefined,
    };
  }

  private measure(now: number): void {
    const { tokens } = this.transcript;
    const first = this.marks[0];
    this.marks = [...this.marks, { ms: now, tokens }].filter(({ ms }) => now - ms <= PACE_MS);
    if (first === undefined || now - first.ms < 1_000) return;
    const pace = (1_000 * (tokens - first.tokens)) / (now - first.ms);
    if (pace !== this.pace) this.changed();
    this.pace = pace;
  }

  private tick(): void {
    const now = this.world.now();
    if (now - this.tickedMs > ASLEEP_MS) this.follower.rested(now);
    this.tickedMs = now;
    this.measure(now);
    if (this.link === "lost") {
      if (this.againMs !== undefined && now >= this.againMs) {
        this.connect();
        this.changed();
      }
      return;
    }
    if (this.link === "open" && this.follower.step(now)) this.connect();
    if (this.follower.ending !== undefined) {
      this.close();
      this.changed();
    }
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null && name in value
    ? (value as Readonly<Record<string, unknown>>)[name]
    : undefined;
}
