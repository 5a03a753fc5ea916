// The data of the plots, as `/v1/history` returns it: the server samples its metrics, and reads what is older from the lake. An unknown value is a
// gap, not zero.

import { moment } from "./format.ts";

export type Figure = number | null;

export interface Track {
  /** Seconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly columns: readonly (readonly Figure[])[];
}

/** What `/v1/history` returns: counters are rates per second. */
export interface ServerHistory {
  readonly times: readonly number[];
  readonly columns: Readonly<Record<string, readonly Figure[]>>;
  /** False for a stream that is not among the busiest. */
  readonly sampled: boolean;
  /** Why no earlier rows were read from the lake. */
  readonly note: string | null;
}

export const RANGES = [["600", "10 min"], ["3600", "1 h"], ["86400", "24 h"], ["604800", "7 d"]] as const;
export type Range = (typeof RANGES)[number][0];

/** How much later than the range the data may begin before the page says so. */
const SLACK_S = 120;

/** What a reader must know about the data of a range: from when it is, and why there is no more. */
export function coverage(history: ServerHistory | undefined, seconds: number, now: number = Date.now()): string {
  if (history === undefined) return "";
  const [first] = history.times;
  const isShort = first === undefined || first > now / 1000 - seconds + Math.max(SLACK_S, seconds / 100);
  const parts = [
    !history.sampled && "The server samples only its busiest streams, and this is not one of them.",
    isShort && first === undefined && "No data yet.",
    isShort && first !== undefined && `Data since ${moment(first * 1000)}.`,
    isShort && history.note !== null && `Nothing earlier: ${history.note}.`,
  ];
  return parts.filter(Boolean).join(" ");
}

/** Envelopes that wait for a consumer: the depth without dead letters, which wait for a person. */
export const READY = "ready";

/** A function that returns the track of some metrics. */
export function tracksOf(history: Pick<ServerHistory, "times" | "columns"> | undefined): (metrics: readonly string[]) => Track {
  const { times, columns } = history ?? { times: [], columns: {} };
  const depth = columns["penstock_q_depth"] ?? [];
  const dead = columns["penstock_dead_letters"] ?? [];
  const all: ServerHistory["columns"] = { ...columns, [READY]: depth.map((many, row) => (many === null ? null : many - (dead[row] ?? 0))) };
  return (metrics) => ({ times, columns: metrics.map((name) => all[name] ?? times.map(() => null)) });
}
