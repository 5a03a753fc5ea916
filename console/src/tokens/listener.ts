// Reads one stream: a socket that reconnects, the verifier, and the text so far.
//
// A socket subscribes to one topic and then only receives, so missing messages are requested with a new socket that sends the last verified
// MAC. The key never leaves this object: only the topic and that MAC are sent.

import { fromHex, KEY_SIZE, type Suite, toHex } from "./chain.ts";
import { StreamVerifier, type RetryOptions } from "./verifier.ts";
import { Transcript } from "./transcript.ts";

const BACKOFF_FIRST_MS = 500;
const BACKOFF_LONGEST_MS = 10_000;
const TICK_MS = 100;
/** The window of the token rate. */
const RATE_MS = 5_000;
/** A longer pause between two ticks means that the page was suspended. */
const ASLEEP_MS = 8_000;

export interface Wanted {
  readonly topic: string;
  /** 32 bytes in hexadecimal. */
  readonly key: string;
  readonly suite: Suite;
}

export interface Rejection {
  readonly message: string;
  readonly hint?: string | undefined;
}

export type Link = "connecting" | "open" | "lost" | "closed";

/** The part of the browser's WebSocket that is used. */
export interface Socket {
  binaryType: string;
  onopen: (() => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onclose: (() => void) | null;
  send(text: string): void;
  close(): void;
}

/** The environment of a listener, replaced in tests. */
export interface Environment {
  open(): Socket;
  now(): number;
  every(ms: number, run: () => void): () => void;
}

/** The first error in the input, or undefined. */
export function validate(wanted: Wanted): Rejection | undefined {
  if (!/^[0-9a-f]{64}$/.test(wanted.topic)) return { message: "A topic must have 64 lower-case hexadecimal digits." };
  const key = fromHex(wanted.key);
  if (key?.length !== KEY_SIZE) return { message: `A MAC key must have ${2 * KEY_SIZE} hexadecimal digits.` };
  if (key.every((byte) => byte === 0)) return { message: "A MAC key must not be all zeros." };
  return undefined;
}

export class Listener {
  readonly wanted: Wanted;
  readonly transcript = new Transcript();
  readonly verifier: StreamVerifier;
  link: Link = "connecting";
  rejection: Rejection | undefined;
  /** Continue with the next stream of the topic when one ends. */
  isEndless = false;
  /** Lost connections. */
  disconnects = 0;
  /** Recent tokens per second. */
  tokenRate: number | undefined;
  private readonly world: Environment;
  private readonly changed: () => void;
  private socket: Socket | undefined;
  private stopTicks: (() => void) | undefined;
  private backoffMs = BACKOFF_FIRST_MS;
  private againMs: number | undefined;
  private tickedMs: number;
  /** Token counts of the last seconds. */
  private marks: readonly { readonly ms: number; readonly tokens: number }[] = [];
  /** Request all that the relay has, instead of the messages after the mark, which it may no longer know. */
  private isWhole = false;

  constructor(wanted: Wanted, world: Environment, changed: () => void, options?: RetryOptions) {
    const key = fromHex(wanted.key);
    if (key === undefined) throw new RangeError("a key must consist of hexadecimal digits");
    this.wanted = wanted;
    this.world = world;
    this.changed = changed;
    this.tickedMs = world.now();
    this.verifier = new StreamVerifier(world.now(), wanted.topic, key, wanted.suite, options);
    this.start();
  }

  /** Close the socket and stop the timer. */
  close(): void {
    this.stopTicks?.();
    this.stopTicks = undefined;
    this.againMs = undefined;
    this.drop();
    this.link = "closed";
  }

  /** Retry after an ending that the publisher did not send. */
  reopen(skip: boolean): void {
    this.close();
    this.verifier.reopen(this.world.now(), skip);
    this.rejection = undefined;
    this.isWhole = skip;
    this.start();
    this.changed();
  }

  /** Continue with the streams that follow. */
  continueWithNext(): void {
    this.isEndless = true;
    this.close();
    this.next();
    this.start();
    this.changed();
  }

  private next(): void {
    const { ending } = this.verifier;
    const word = ending?.kind === "complete" ? "complete" : ending?.kind === "failure" ? ending.code || "failed" : "";
    this.transcript.end(`${word}; next stream`);
    this.verifier.restart(this.world.now());
  }

  /** After an end message, continue with the next stream if requested. Otherwise close. */
  private settle(): void {
    const { ending } = this.verifier;
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
      const mark = this.isWhole ? undefined : this.verifier.mark;
      const subscription = { topic: this.wanted.topic, ...(mark === undefined ? {} : { resume: toHex(mark) }) };
      socket.send(JSON.stringify(subscription));
      this.link = "open";
      if (wasLost) this.verifier.resetTimers(this.world.now());
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
    if (this.rejection !== undefined) {
      this.close();
    } else if (this.link !== "closed") {
      this.link = "lost";
      this.disconnects += 1;
      this.againMs = this.world.now() + this.backoffMs;
      this.backoffMs = Math.min(2 * this.backoffMs, BACKOFF_LONGEST_MS);
    }
    this.changed();
  }

  private receive(data: unknown): void {
    const now = this.world.now();
    if (data instanceof ArrayBuffer) {
      const accepted = this.verifier.counts.accepted;
      this.transcript.add(this.verifier.take(now, new Uint8Array(data)));
      if (this.verifier.counts.accepted > accepted) {
        this.backoffMs = BACKOFF_FIRST_MS;
        this.isWhole = false;
      }
    } else if (typeof data === "string") {
      this.receiveText(data);
    }
    this.settle();
    this.changed();
  }

  /** A text message of the server: a MAC that is gone, or an error. */
  private receiveText(text: string): void {
    const message: unknown = parsed(text);
    const gone = field(message, "gone");
    if (typeof gone === "string") this.verifier.gone(gone);
    const error = field(message, "error");
    if (error === undefined || field(error, "retryable") === true) return;
    const [reason, hint] = [field(error, "message"), field(error, "hint")];
    this.rejection = {
      message: typeof reason === "string" ? reason : "The server rejected the request.",
      hint: typeof hint === "string" ? hint : undefined,
    };
  }

  private measure(now: number): void {
    const { tokens } = this.transcript;
    const first = this.marks[0];
    this.marks = [...this.marks, { ms: now, tokens }].filter(({ ms }) => now - ms <= RATE_MS);
    if (first === undefined || now - first.ms < 1_000) return;
    const tokenRate = (1_000 * (tokens - first.tokens)) / (now - first.ms);
    if (tokenRate !== this.tokenRate) this.changed();
    this.tokenRate = tokenRate;
  }

  private tick(): void {
    const now = this.world.now();
    if (now - this.tickedMs > ASLEEP_MS) this.verifier.resetTimers(now);
    this.tickedMs = now;
    this.measure(now);
    if (this.link === "lost") {
      if (this.againMs !== undefined && now >= this.againMs) {
        this.connect();
        this.changed();
      }
      return;
    }
    if (this.link === "open" && this.verifier.step(now)) this.connect();
    if (this.verifier.ending !== undefined) {
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
