// SQL queries on the tables, and the format of their results.

import { Digits, written } from "../json.ts";
import { fetchExact } from "../request.ts";

export interface Answer {
  readonly columns: readonly string[];
  readonly types: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
  readonly truncated: boolean;
  readonly ms: number;
}

export const ROWS_MAX = 1_000;
/** Recent queries kept until the page is closed. */
export const RECENT_MAX = 50;
/** Characters shown of a cell; its tooltip has the full text. */
const CELL_MAX = 120;

export function runQuery(query: string, limit: number, signal?: AbortSignal): Promise<Answer> {
  return fetchExact<Answer>("/v1/sql", { method: "POST", body: { query, limit }, signal });
}

/** A quoted SQL identifier. */
export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

export function sample(table: string): string {
  return `select * from ${quoted(table)} limit 50`;
}

/** Recent queries, newest first, without duplicates. */
export function addRecent(recent: readonly string[], query: string): readonly string[] {
  return [query, ...recent.filter((each) => each !== query)].slice(0, RECENT_MAX);
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

/** A result as CSV. A leading `'` marks what a spreadsheet would run as a formula as text. */
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
  /** The table that it needs. */
  readonly table: string;
}

export const EXAMPLES: readonly Example[] = [
  {
    title: "Slowest channels",
    table: "deliveries",
    query: "select channel, count(*) as settled, round(avg(total_ms), 1) as mean_ms, round(max(total_ms), 1) as max_ms\nfrom deliveries group by channel order by mean_ms desc limit 20",
  },
  {
    title: "Queues per minute",
    table: "queue_minutes",
    query: "select minute, channel, enqueued, acked, dead from queue_minutes order by minute desc, channel limit 100",
  },
  {
    title: "Saved by targeting",
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
    title: "Journal rows by event",
    table: "events",
    query: "select door, event, count(*) as rows from events group by door, event order by rows desc",
  },
];
