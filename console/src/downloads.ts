// Exports rows as files: JSON lines, or CSV for spreadsheets.

import type { Row } from "./rows.ts";

const COLUMNS = [
  "offset", "recorded_at", "door", "event", "channel", "seq", "id", "kind", "sender", "peer", "corr", "attempt", "bytes", "recipients",
  "reason", "ref_offset", "ref_at", "first_at", "meta", "body",
] as const;

export function jsonLines(rows: readonly Row[]): string {
  return rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}

export function csv(rows: readonly Row[]): string {
  const lines = rows.map((row) => COLUMNS.map((column) => cell(row[column])).join(","));
  return [COLUMNS.join(","), ...lines].map((line) => `${line}\r\n`).join("");
}

/** A quoted cell. A leading `'` marks what a spreadsheet would run as a formula as text, because senders control the content. */
function cell(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Save a text as a file. */
export function download(name: string, type: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 1_000);
}
