// The server's metrics: latest values and rates. They are polled on every page while signed in, so that rates are known when you open
// Overview.

import { effect, signal } from "@preact/signals";
import { useMemo } from "preact/hooks";

import { parseExposition, type Scrape, sumOf, valueOf } from "./exposition.ts";
import { coverage, type ServerHistory, type Track, tracksOf } from "./history.ts";
import { Rates } from "./rates.ts";
import { type Failure, fetchJson, fetchText, withQuery } from "./request.ts";
import { Poller, useResource } from "./resource.ts";
import { session } from "./session.ts";

export interface Reading {
  /** Seconds since 1970. */
  readonly at: number;
  readonly scrape: Scrape;
  /** Rate per second of every counter, summed over its labels. */
  readonly rates: ReadonlyMap<string, number>;
  /** Increase of every counter in the last minute, or since the page was opened. */
  readonly minute: ReadonlyMap<string, number>;
}

export const reading = signal<Reading | undefined>(undefined);

// Only sums over all streams, even if the config exports each stream.
const poller = new Poller((stop) => fetchText("/metrics?streams=0", { signal: stop }), 1_000);
export const metricsFailure = poller.failure;

/** Envelopes that wait for a consumer; dead letters wait for a person. */
export function readyOf(scrape: Scrape): number | undefined {
  const depth = valueOf(scrape, "penstock_q_depth");
  return depth === undefined ? undefined : depth - (valueOf(scrape, "penstock_dead_letters") ?? 0);
}

/** The time between two samples of the server. A long range changes more slowly. */
const SAMPLE_MS = 5_000;
const SLOW_MS = 15_000;

export interface Past {
  /** Returns the track of some metrics. */
  readonly tracks: (metrics: readonly string[]) => Track;
  readonly failure: Failure | undefined;
  /** From when there is data, if not for the whole range. */
  readonly note: string;
}

/** The history of the last seconds: of the server, or of one stream. */
export function useHistory(seconds: number, stream?: string): Past {
  const path = withQuery("/v1/history", { seconds, stream });
  const { data, failure } = useResource(path, (stop) => fetchJson<ServerHistory>(path, { signal: stop }), seconds > 3_600 ? SLOW_MS : SAMPLE_MS);
  const tracks = useMemo(() => tracksOf(data.value), [data.value]);
  return { tracks, failure: failure.value, note: coverage(data.value, seconds) };
}

export function watchTelemetry(): void {
  const rates = new Rates(5);
  const minutes = new Rates(60);
  let end: (() => void) | undefined;
  effect(() => {
    const signedIn = session.value.state === "in";
    if (signedIn && end === undefined) end = poller.use();
    else if (!signedIn) {
      end?.();
      end = undefined;
    }
  });
  effect(() => {
    const text = poller.data.value;
    if (text === undefined) return;
    const at = Date.now() / 1000;
    const scrape = parseExposition(text);
    const counters = [...scrape.keys()].filter((name) => name.endsWith("_total"));
    const counts = new Map(counters.map((name) => [name, sumOf(scrape, name) ?? 0]));
    const minute = new Map([...minutes.take(at, counts)].map(([name, rate]) => [name, Math.round(rate * minutes.seconds)]));
    reading.value = { at, scrape, rates: rates.take(at, counts), minute };
  });
}
