// The server's metrics: latest values, rates and history. They are polled on every page while signed in, so the plots have history when
// you open them.

import { effect, signal } from "@preact/signals";

import { parseExposition, type Scrape, sumOf, valueOf } from "./exposition.ts";
import { History } from "./history.ts";
import { Rates } from "./rates.ts";
import { fetchText } from "./request.ts";
import { Poller } from "./resource.ts";
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
export const history = new History();

// Only sums over all streams, even if the config exports each stream.
const poller = new Poller((stop) => fetchText("/metrics?streams=0", { signal: stop }), 1_000);
export const metricsFailure = poller.failure;

/** Envelopes that wait for a consumer; dead letters wait for a person. */
export function readyOf(scrape: Scrape): number | undefined {
  const depth = valueOf(scrape, "penstock_q_depth");
  return depth === undefined ? undefined : depth - (valueOf(scrape, "penstock_dead_letters") ?? 0);
}

/** The values of the plots, by column name. */
function columns({ scrape, rates }: Reading): Record<string, number | undefined> {
  const quantile = (text: string): number | undefined => valueOf(scrape, "penstock_q_lat_ms", { quantile: text });
  return {
    in: rates.get("penstock_q_in_total"),
    out: rates.get("penstock_q_out_total"),
    acked: rates.get("penstock_q_ack_total"),
    depth: readyOf(scrape),
    inflight: valueOf(scrape, "penstock_q_if"),
    delayed: valueOf(scrape, "penstock_q_delayed"),
    p50: quantile("0.5"),
    p95: quantile("0.95"),
    p99: quantile("0.99"),
    envelopes: rates.get("penstock_space_envelopes_total"),
    frames: rates.get("penstock_space_frames_total"),
    deliveries: rates.get("penstock_space_deliveries_total"),
    relayed: rates.get("penstock_relay_messages_total"),
    forwarded: rates.get("penstock_relay_forwarded_total"),
    lag: valueOf(scrape, "penstock_pipeline_lag_rows"),
  };
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
    const latest = { at, scrape, rates: rates.take(at, counts), minute };
    history.push(at, columns(latest));
    reading.value = latest;
  });
}
