// Whether the server can be reached. One probe with back-off asks for all of the page; everything else waits for it, so that a server that
// comes back is not met by a crowd.

import { signal } from "@preact/signals";

import { ask, onFailure } from "./request.ts";
import { look } from "./session.ts";

export type Link =
  | { readonly state: "up" }
  | { readonly state: "down"; readonly sinceMs: number; readonly attempt: number; readonly nextAtMs: number }
  | { readonly state: "back"; readonly awayMs: number; readonly missed: number };

export const link = signal<Link>({ state: "up" });

/** How long the word of being back stays. */
const BACK_MS = 8_000;

const waiters = new Set<() => void>();

/** Wait between two attempts: doubling from half a second to ten, less up to a quarter by chance. */
export function backoffMs(attempt: number, chance: number): number {
  return Math.round(Math.min(10_000, 500 * 2 ** (attempt - 1)) * (1 - chance / 4));
}

export function watchLink(): void {
  onFailure((failure) => {
    if (failure.isUnreachable && link.value.state !== "down") void probe();
  });
}

/** Resolves once the server can be reached; at once when it can. */
export function reachable(): Promise<void> {
  if (link.value.state !== "down") return Promise.resolve();
  return new Promise((resolve) => waiters.add(resolve));
}

/** Say that rows went by unseen while the server was away. */
export function addMissed(rows: number): void {
  if (link.value.state === "back") link.value = { ...link.value, missed: link.value.missed + rows };
}

async function probe(): Promise<void> {
  const sinceMs = Date.now();
  for (let attempt = 1; ; attempt += 1) {
    const waitMs = backoffMs(attempt, Math.random());
    link.value = { state: "down", sinceMs, attempt, nextAtMs: Date.now() + waitMs };
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    try {
      await ask("/health");
      break;
    } catch {
      continue;
    }
  }
  await look();
  link.value = { state: "back", awayMs: Date.now() - sinceMs, missed: 0 };
  for (const resolve of waiters) resolve();
  waiters.clear();
  setTimeout(() => {
    if (link.value.state === "back") link.value = { state: "up" };
  }, BACK_MS);
}
