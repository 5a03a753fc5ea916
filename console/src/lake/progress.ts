// What the pipeline says about itself, in words.

import type { Tone } from "../parts/panel.tsx";

export interface QueryProgress {
  readonly offset: number;
  readonly batches: number;
  readonly rows: number;
  readonly batch_ms: number;
  readonly at_us: number;
}

export interface Pipeline {
  readonly state: "off" | "starting" | "running" | "stopped" | "failed" | "halted";
  readonly lag: number;
  readonly end: number;
  readonly offset: number;
  readonly restarts: number;
  readonly queries: Readonly<Record<string, QueryProgress>>;
  readonly behind: Readonly<Record<string, number>>;
  /** Queries of users' own: `running`, or why not. A server before them does not tell. */
  readonly own?: Readonly<Record<string, string>>;
  readonly code?: string | null;
  readonly message?: string | null;
  readonly hint?: string | null;
  readonly ui?: string | null;
}

export const STATES: Readonly<Record<Pipeline["state"], { readonly tone: Tone; readonly text: string }>> = {
  off: { tone: "plain", text: "The pipeline is switched off." },
  starting: { tone: "accent", text: "Spark starts, which takes some seconds." },
  running: { tone: "good", text: "Whatever the journal records is in the tables a moment later." },
  stopped: { tone: "plain", text: "The pipeline was stopped." },
  failed: { tone: "bad", text: "The pipeline failed, and is started again by itself, later each time." },
  halted: { tone: "bad", text: "The pipeline waits for a person: starting it again would only fail again." },
};

/** An address that is safe to be a link: `javascript:` and the like are none. */
export function webAddress(text: string | null | undefined): string | undefined {
  if (text === null || text === undefined) return undefined;
  try {
    const { protocol, href } = new URL(text);
    return protocol === "http:" || protocol === "https:" ? href : undefined;
  } catch {
    return undefined;
  }
}
