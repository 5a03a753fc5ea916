// Queue streams as `/v1/metrics`, `/v1/peek` and `/v1/streams/…/explain` return them.

import { plural } from "./format.ts";
import { written } from "./json.ts";
import { fetchJson, fetchExact, withQuery } from "./request.ts";
import { type Resource, useResource } from "./resource.ts";

export interface StreamFigures {
  readonly id: string;
  readonly stats: {
    readonly depth: number;
    readonly inflight: number;
    readonly delayed: number;
    readonly rateIn: number;
    readonly rateOut: number;
    readonly latP50: number;
    readonly latP95: number;
    readonly latP99: number;
    readonly lastTs: string | null;
    readonly bytes: number;
    readonly consumers: number;
    readonly credit: number;
    readonly oldestMs: number;
    /** Envelopes that failed more than five times; a server of an earlier version does not count them. */
    readonly hot?: number;
  };
  readonly q: Readonly<Record<string, number>>;
}

export interface Envelope {
  readonly id: string;
  readonly ts?: string;
  readonly from?: string;
  readonly to?: string;
  readonly type?: string;
  readonly corr?: string;
  readonly payload?: unknown;
  readonly refs?: readonly string[] | null;
  readonly headers?: {
    /** What the server adds to a dead letter. */
    readonly "x-courier"?: { readonly reason?: string; readonly lastError?: string; readonly attempts?: number };
  };
}

export type PeekState = "ready" | "inflight" | "delayed" | "dead";

export interface Peeked {
  readonly env: Envelope;
  readonly stream: string;
  readonly state: string;
  readonly seq: number;
  readonly attempt: number;
  readonly holder?: string;
  /** Milliseconds since 1970. */
  readonly leaseExpiresAt?: number;
  readonly dueAt?: number;
  readonly lastError?: string;
}

export interface Reason {
  readonly code: string;
  readonly message: string;
  readonly count?: number;
  readonly consumers?: number;
  readonly nextExpiryMs?: number;
  readonly nextDueAt?: number;
  /** Envelopes that the reason is about, the first ones. */
  readonly ids?: readonly string[];
}

export interface Consumer {
  readonly holder: string;
  readonly credit: number;
  readonly inflight: number;
  readonly delivered: number;
  readonly writable: boolean;
}

export interface Explanation {
  readonly flowing: boolean;
  readonly reasons: readonly Reason[];
  readonly consumers: readonly Consumer[];
}

/** Envelopes on one page. */
export const PAGE_MAX = 100;
/** Envelopes of one request of a search, which is as many as the server allows. */
const SEARCH_STEP = 1_000;
/** Matches after which a search ends. */
export const MATCHES_MAX = 500;

export function useStreams(): Resource<readonly StreamFigures[]> {
  return useResource("/v1/metrics", async (stop) => {
    const { streams } = await fetchJson<{ streams: readonly StreamFigures[] }>("/v1/metrics", { signal: stop });
    return streams;
  });
}

export function useExplanation(stream: string): Resource<Explanation> {
  const path = `/v1/streams/${encodeURIComponent(stream)}/explain`;
  return useResource(path, (stop) => fetchJson<Explanation>(path, { signal: stop }));
}

export interface Page {
  readonly rows: readonly Peeked[];
  /** The last sequence number if there are more. */
  readonly next: number | null;
}

function peek(stream: string, state: PeekState, after: number, max: number, stop: AbortSignal): Promise<Page> {
  return fetchExact<Page>(withQuery("/v1/peek", { stream, state, max, after }), { signal: stop });
}

/** A page of envelopes in the order of their sequence numbers, after one of them. */
export function usePage(stream: string, state: PeekState, after: number): Resource<Page> {
  return useResource(`peek ${state} ${after} ${stream}`, (stop) => peek(stream, state, after, PAGE_MAX, stop));
}

export interface Found extends Page {
  readonly looked: number;
  readonly isOver: boolean;
}

/** Search all envelopes of a state, a part at a time; `tell` is called with what was found so far. */
export async function search(stream: string, state: PeekState, text: string, tell: (found: Found) => void, stop: AbortSignal): Promise<void> {
  const wanted = text.toLowerCase();
  const rows: Peeked[] = [];
  let looked = 0;
  for (let after: number | null = 0; after !== null; ) {
    const page: Page = await peek(stream, state, after, SEARCH_STEP, stop);
    looked += page.rows.length;
    rows.push(...page.rows.filter(({ env, lastError }) => written([env, lastError]).toLowerCase().includes(wanted)));
    after = rows.length >= MATCHES_MAX ? null : page.next;
    tell({ rows: rows.slice(0, MATCHES_MAX), next: page.next, looked, isOver: after === null });
  }
}

export interface Redriven {
  readonly moved: number;
  readonly kept: number;
}

/** The result of a redrive as text. */
export function redriven({ moved, kept }: Redriven): string {
  return `${plural(moved, "dead letter")} redriven.${kept > 0 ? ` ${plural(kept, "dead letter")} kept: the stream did not accept ${kept === 1 ? "it" : "them"}.` : ""}`;
}

const DEAD = /^(t\/[^/]+\/)?dlq\//;

export function isDeadLetters(stream: string): boolean {
  return DEAD.test(stream);
}

/** The stream whose dead letters a stream holds; any other stream is its own. */
export function homeNameOf(stream: string): string {
  return stream.replace(DEAD, "$1");
}

/** The dead-letter stream of a stream; a dead-letter stream is its own. */
export function deadNameOf(stream: string): string {
  if (isDeadLetters(stream)) return stream;
  return stream.replace(/^(t\/[^/]+\/)?/, "$1dlq/");
}

export interface DeadLetters {
  /** The stream that the envelopes died in. */
  readonly stream: string;
  readonly now: number;
  readonly ever: number;
  readonly oldestMs: number;
}

/** The streams that have dead letters, or had some. */
export function deadLettersOf(streams: readonly StreamFigures[]): DeadLetters[] {
  const known = new Map(streams.map((stream) => [stream.id, stream]));
  const homes = new Set(streams.map(({ id }) => homeNameOf(id)));
  return [...homes]
    .map((stream) => {
      const dead = known.get(deadNameOf(stream));
      // An idle stream is unloaded; what its dead-letter stream has received is the same number.
      const ever = known.get(stream)?.q["q.dead"] ?? dead?.q["q.in"] ?? 0;
      return { stream, now: dead?.stats.depth ?? 0, ever, oldestMs: dead?.stats.oldestMs ?? 0 };
    })
    .filter(({ now, ever }) => now > 0 || ever > 0);
}

export type Standing = "working" | "waiting" | "starved" | "slow";

/** The state of a consumer. One without credit receives nothing. */
export function standing(consumer: Consumer): Standing {
  if (!consumer.writable) return "slow";
  if (consumer.inflight > 0) return "working";
  return consumer.credit > 0 ? "waiting" : "starved";
}
