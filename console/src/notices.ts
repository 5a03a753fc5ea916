// Notifications about completed actions. They disappear after a few seconds; errors stay until dismissed. Screen readers read them.

import { signal } from "@preact/signals";

import { asFailure, type Failure } from "./request.ts";

export interface Notice {
  readonly key: number;
  readonly text: string;
  readonly hint: string | undefined;
  readonly tone: "good" | "bad";
}

const STAY_MS = 6_000;
/** Notices shown at once; beyond that the oldest is removed. */
const NOTICES_MAX = 4;

export const notices = signal<readonly Notice[]>([]);
let nextKey = 0;

export function notify(text: string): void {
  const key = add(text, undefined, "good");
  setTimeout(() => dismiss(key), STAY_MS);
}

export function notifyFailure(failure: Failure): void {
  add(failure.message, failure.hint, "bad");
}

/** Do something that a user asked for, and show why it failed. */
export async function report(act: () => Promise<void>): Promise<void> {
  try {
    await act();
  } catch (error) {
    notifyFailure(asFailure(error));
  }
}

export function dismiss(key: number): void {
  notices.value = notices.value.filter((notice) => notice.key !== key);
}

function add(text: string, hint: string | undefined, tone: Notice["tone"]): number {
  nextKey += 1;
  notices.value = [...notices.value, { key: nextKey, text, hint, tone }].slice(-NOTICES_MAX);
  return nextKey;
}
