// The pipeline's status as `/v1/pipeline` returns it, with a text for each state.

import type { Tone } from "../parts/panel.tsx";
import type { Batch } from "./steps.ts";

export interface QueryProgress {
  readonly offset: number;
  readonly batches: number;
  readonly rows: number;
  readonly batch_ms: number;
  readonly at_us: number;
  /** The latest batches, newest last. Missing on older servers, as is the rate. */
  readonly recent?: readonly Batch[];
  /** Rows a second that arrive, by Spark. */
  readonly input_rate?: number;
}

/** The size and the progress of a table. */
export interface TableProgress {
  readonly lag_rows: number;
  /** The age of the oldest row that it lacks. */
  readonly lag_seconds: number;
  /** How long it took in the latest batch of its query. */
  readonly batch_ms: number;
  /** Rows that this batch wrote. Missing on older servers. */
  readonly batch_rows?: number;
}

/** A table that lacks older rows than this is marked; a batch takes a second or two. */
export const LATE_S = 30;

/** Batches that failed in one step. */
export interface BatchFailure {
  readonly query: string;
  /** Empty for a step of the whole batch. */
  readonly table: string;
  readonly step: string;
  readonly count: number;
  readonly at_us: number;
  readonly cause: string;
}

/** Rows of a user-defined table that failed an expectation. */
export interface Expectation {
  readonly table: string;
  readonly name: string;
  readonly on_fail: "drop" | "warn" | "fail";
  readonly failed: number;
  /** The key of one of these rows. */
  readonly sample: string;
}

export interface Pipeline {
  readonly state: "off" | "starting" | "running" | "stopped" | "failed" | "halted";
  readonly lag: number;
  readonly end: number;
  readonly offset: number;
  readonly restarts: number;
  readonly queries: Readonly<Record<string, QueryProgress>>;
  readonly behind: Readonly<Record<string, number>>;
  /** User-defined queries: `running`, or the error. Missing on older servers. */
  readonly own?: Readonly<Record<string, string>>;
  /** Their progress; the offset is unknown. */
  readonly own_queries?: Readonly<Record<string, QueryProgress>>;
  readonly failed?: readonly BatchFailure[];
  readonly tables?: Readonly<Record<string, TableProgress>>;
  /** User-defined tables that stopped, and why. */
  readonly stopped?: Readonly<Record<string, string>>;
  readonly expectations?: readonly Expectation[];
  readonly code?: string | null;
  readonly message?: string | null;
  readonly hint?: string | null;
  readonly ui?: string | null;
}

export const STATES: Readonly<Record<Pipeline["state"], { readonly tone: Tone; readonly text: string }>> = {
  off: { tone: "plain", text: "The pipeline is off." },
  starting: { tone: "accent", text: "Spark is starting. This takes a few seconds." },
  running: { tone: "good", text: "New journal rows appear in the tables within seconds." },
  stopped: { tone: "plain", text: "The pipeline is stopped." },
  failed: { tone: "bad", text: "The pipeline failed. The server restarts it with increasing delays." },
  halted: { tone: "bad", text: "The pipeline is halted and needs manual action: a restart would fail again." },
};

/** A URL that is safe to link to: HTTP or HTTPS, not `javascript:`. */
export function webAddress(text: string | null | undefined): string | undefined {
  if (text === null || text === undefined) return undefined;
  try {
    const { protocol, href } = new URL(text);
    return protocol === "http:" || protocol === "https:" ? href : undefined;
  } catch {
    return undefined;
  }
}
