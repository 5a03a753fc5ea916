// Who sits before the page. The token is traded for a cookie that no script can read, so nothing of it is kept here.

import { computed, signal } from "@preact/signals";

import { decoded } from "./place.ts";
import { ask, asFailure, Failure, onFailure } from "./request.ts";

export interface Who {
  readonly name: string;
  readonly operator: boolean;
  readonly version: string;
  readonly bootId: string;
  readonly spaces: readonly string[];
  readonly relay: boolean;
}

export type Session =
  | { readonly state: "asking" }
  | { readonly state: "out"; readonly failure?: Failure }
  | { readonly state: "in"; readonly who: Who };

export const session = signal<Session>({ state: "asking" });

/** The version that this page was loaded from; files of another may speak of other things. */
let loadedVersion: string | undefined;

/** Whether the server was updated under the page. */
export const isOutdated = computed(() => {
  if (session.value.state !== "in") return false;
  loadedVersion ??= session.value.who.version;
  return session.value.who.version !== loadedVersion;
});

const TOKEN = /^#token=([^&]+)/;

/** Sign in by the address, else by the cookie of an earlier visit. The token leaves the address at once, and the history with it. */
export async function resume(): Promise<void> {
  onFailure((failure) => {
    if (failure.status === 401 && session.value.state === "in") session.value = { state: "out" };
  });
  // The link may also be opened where the page is open already, as on the form that asks for the token.
  window.addEventListener("hashchange", () => void byLink());
  if (!(await byLink())) await look();
}

/** Whether the address held a token, with which one was signed in or refused. */
async function byLink(): Promise<boolean> {
  const found = TOKEN.exec(window.location.hash);
  if (found?.[1] === undefined) return false;
  window.history.replaceState(null, "", "#/");
  window.dispatchEvent(new HashChangeEvent("hashchange"));
  await signIn(decoded(found[1]));
  return true;
}

/** Ask who is signed in. While the server is away this leaves things as they are. */
export async function look(): Promise<void> {
  try {
    session.value = { state: "in", who: await ask<Who>("/console/session") };
  } catch (error) {
    const failure = asFailure(error);
    if (failure.status === 401) session.value = { state: "out" };
    else if (session.value.state === "asking") session.value = { state: "out", failure };
  }
}

export async function signIn(token: string): Promise<void> {
  try {
    const who = await ask<Who>("/console/session", { method: "POST", body: { token } });
    session.value = { state: "in", who };
  } catch (error) {
    session.value = { state: "out", failure: asFailure(error) };
  }
}

export async function signOut(): Promise<void> {
  try {
    await ask<undefined>("/console/session", { method: "DELETE" });
  } finally {
    session.value = { state: "out" };
  }
}
