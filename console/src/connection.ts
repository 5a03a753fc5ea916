// Whether the server can be reached. One probe with backoff serves the whole page, and all other requests wait for it, so a server that
// restarts does not receive all of them at once.

import { signal } from "@preact/signals";

import { fetchJson, onFailure } from "./request.ts";
import { refreshSession } from "./session.ts";

export type Connection =
  | { readonly state: "up" }
  | { readonly state: "down"; readonly sinceMs: number; readonly attempt: number; readonly nextAtMs: number }
  | { readonly state: "back"; readonly awayMs: number; readonly missed: number };

export const connection = signal<Connection>({ state: "up" });

/** How long the banner "Reconnected" is shown. */
const BACK_MS = 8_000;

const waiters = new Set<() => void>();

/** The wait between two attempts: doubles from 0.5 s to 10 s, minus up to 25 % jitter. */
export function backoffMs(attempt: number, chance: number): number {
  return Math.round(Math.min(10_000, 500 * 2 ** (attempt - 1)) * (1 - chance / 4));
}

export function watchConnection(): void {
  onFailure((failure) => {
    if (failure.isUnreachable && connection.value.state !== "down") void probe();
  });
}

/** Resolves when the server can be reached. */
export function reachable(): Promise<void> {
  if (connection.value.state !== "down") return Promise.resolve();
  return new Promise((resolve) => waiters.add(resolve));
}

/** Report rows that were missed while the server was unreachable. */
export function addMissed(rows: number): void {
  if (connection.value.state === "back") connection.value = { ...connection.value, missed: connection.value.missed + rows };
}

async function probe(): Promise<void> {
  const sinceMs = Date.now();
  for (let attempt = 1; ; attempt += 1) {
    const waitMs = backoffMs(attempt, Math.random());
    connection.value = { state: "down", sinceMs, attempt, nextAtMs: Date.now() + waitMs };
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    try {
      await fetchJson("/health/live");
      break;
    } catch {
      continue;
    }
  }
  await refreshSession();
  connection.value = { state: "back", awayMs: Date.now() - sinceMs, missed: 0 };
  for (const resolve of waiters) resolve();
  waiters.clear();
  setTimeout(() => {
    if (connection.value.state === "back") connection.value = { state: "up" };
  }, BACK_MS);
}
