// Short words about what was just done. They are read out by screen readers and go by themselves; refusals stay until they are closed.

import { signal } from "@preact/signals";

import type { Failure } from "./request.ts";

export interface Notice {
  readonly key: number;
  readonly text: string;
  readonly hint: string | undefined;
  readonly tone: "good" | "bad";
}

const STAY_MS = 6_000;
/** More than this at once is noise; the oldest goes. */
const NOTICES_MAX = 4;

export const notices = signal<readonly Notice[]>([]);
let nextKey = 0;

export function notify(text: string): void {
  const key = add(text, undefined, "good");
  setTimeout(() => dismiss(key), STAY_MS);
}

export function complain(failure: Failure): void {
  add(failure.message, failure.hint, "bad");
}

export function dismiss(key: number): void {
  notices.value = notices.value.filter((notice) => notice.key !== key);
}

function add(text: string, hint: string | undefined, tone: Notice["tone"]): number {
  nextKey += 1;
  notices.value = [...notices.value, { key: nextKey, text, hint, tone }].slice(-NOTICES_MAX);
  return nextKey;
}
