// Queue streams as `/v1/metrics`, `/v1/peek` and `/v1/streams/…/explain` return them.

import { plural } from "./format.ts";
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

/** Maximum rows of a peek. */
export const PEEK_MAX = 100;

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

export function usePeek(stream: string, state: PeekState): Resource<readonly Peeked[]> {
  const path = withQuery("/v1/peek", { stream, state, max: PEEK_MAX });
  return useResource(path, async (stop) => (await fetchExact<{ rows: readonly Peeked[] }>(path, { signal: stop })).rows);
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

export type Standing = "working" | "waiting" | "starved" | "slow";

/** The state of a consumer. One without credit receives nothing. */
export function standing(consumer: Consumer): Standing {
  if (!consumer.writable) return "slow";
  if (consumer.inflight > 0) return "working";
  return consumer.credit > 0 ? "waiting" : "starved";
}
