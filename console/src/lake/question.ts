// Questions to the tables, and how their answers are written.

import { Digits, written } from "../json.ts";
import { askExact } from "../request.ts";

export interface Answer {
  readonly columns: readonly string[];
  readonly types: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
  readonly truncated: boolean;
  readonly ms: number;
}

export const ROWS_MAX = 1_000;
/** Questions that are remembered, as long as the page is open. */
export const PAST_MAX = 50;
/** Characters of a cell that are shown; the whole is in its tooltip. */
const CELL_MAX = 120;

export function question(query: string, limit: number, signal?: AbortSignal): Promise<Answer> {
  return askExact<Answer>("/v1/sql", { method: "POST", body: { query, limit }, signal });
}

/** A name as SQL takes it, whatever is in it. */
export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

export function sample(table: string): string {
  return `select * from ${quoted(table)} limit 50`;
}

/** The newest first, each once. */
export function remembered(past: readonly string[], query: string): readonly string[] {
  return [query, ...past.filter((each) => each !== query)].slice(0, PAST_MAX);
}

/** A value as one line of text. */
export function cellText(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value;
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return written(value);
}

export function cut(text: string): string {
  return text.length > CELL_MAX ? `${text.slice(0, CELL_MAX)}…` : text;
}

const NUMBERS = /^(u?int|float|double|decimal|bigint|smallint|tinyint|real|long|short)/i;

export function isNumeric(type: string | undefined): boolean {
  return type !== undefined && NUMBERS.test(type);
}

/** An answer as comma separated values. A text that a spreadsheet would take for a formula is told to be text. */
export function toCsv(answer: Answer): string {
  const field = (value: unknown): string => {
    if (value === null || value === undefined) return "";
    const text = cellText(value);
    const isNumber = typeof value === "number" || value instanceof Digits;
    const safe = !isNumber && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [answer.columns, ...answer.rows].map((row) => row.map(field).join(",")).join("\r\n");
}

export interface Example {
  readonly title: string;
  readonly query: string;
  /** The table without which it makes no sense. */
  readonly table: string;
}

export const EXAMPLES: readonly Example[] = [
  {
    title: "Slowest channels",
    table: "deliveries",
    query: "select channel, count(*) as settled, round(avg(total_ms), 1) as mean_ms, round(max(total_ms), 1) as max_ms\nfrom deliveries group by channel order by mean_ms desc limit 20",
  },
  {
    title: "Queues by the minute",
    table: "queue_minutes",
    query: "select minute, channel, enqueued, acked, dead from queue_minutes order by minute desc, channel limit 100",
  },
  {
    title: "What aiming saved",
    table: "fanout_minutes",
    query: "select minute, space, frames, deliveries, broadcast_deliveries, saved from fanout_minutes order by minute desc limit 60",
  },
  {
    title: "Longest conversations",
    table: "conversations",
    query: "select corr, envelopes, agents_count, depth, round(duration_ms, 1) as duration_ms from conversations order by duration_ms desc limit 20",
  },
  {
    title: "Token streams",
    table: "token_streams",
    query: "select topic_hash, started_at, chunks, chunks_per_s, gaps, ended from token_streams order by started_at desc limit 50",
  },
  {
    title: "What the journal holds",
    table: "events",
    query: "select door, event, count(*) as rows from events group by door, event order by rows desc",
  },
];
