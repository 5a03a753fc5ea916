// The session of the signed-in user. The token is exchanged for a cookie that scripts cannot read, so the page does not store it.

import { computed, signal } from "@preact/signals";

import { decoded } from "./router.ts";
import { fetchJson, asFailure, Failure, onFailure } from "./request.ts";

export interface Who {
  readonly name: string;
  readonly operator: boolean;
  readonly version: string;
  readonly bootId: string;
  readonly spaces: readonly string[];
  readonly relay: boolean;
}

export type Session =
  | { readonly state: "loading" }
  | { readonly state: "out"; readonly failure?: Failure }
  | { readonly state: "in"; readonly who: Who };

export const session = signal<Session>({ state: "loading" });

/** The server version that this page was loaded from. */
let loadedVersion: string | undefined;

/** Whether the server was updated since the page was loaded. */
export const isOutdated = computed(() => {
  if (session.value.state !== "in") return false;
  loadedVersion ??= session.value.who.version;
  return session.value.who.version !== loadedVersion;
});

const TOKEN = /^#token=([^&]+)/;

/** Sign in with the token in the URL, otherwise with the cookie. The token is removed from the URL and the history at once. */
export async function resume(): Promise<void> {
  onFailure((failure) => {
    if (failure.status === 401 && session.value.state === "in") session.value = { state: "out" };
  });
  // The sign-in link may be opened in a tab that already shows the console.
  window.addEventListener("hashchange", () => void byLink());
  if (!(await byLink())) await refreshSession();
}

/** Sign in with the token in the URL; false if there is none. */
async function byLink(): Promise<boolean> {
  const found = TOKEN.exec(window.location.hash);
  if (found?.[1] === undefined) return false;
  window.history.replaceState(null, "", "#/");
  window.dispatchEvent(new HashChangeEvent("hashchange"));
  await signIn(decoded(found[1]));
  return true;
}

/** Load the session. If the server is unreachable, an existing session stays. */
export async function refreshSession(): Promise<void> {
  try {
    session.value = { state: "in", who: await fetchJson<Who>("/console/session") };
  } catch (error) {
    const failure = asFailure(error);
    if (failure.status === 401) session.value = { state: "out" };
    else if (session.value.state === "loading") session.value = { state: "out", failure };
  }
}

export async function signIn(token: string): Promise<void> {
  try {
    const who = await fetchJson<Who>("/console/session", { method: "POST", body: { token } });
    session.value = { state: "in", who };
  } catch (error) {
    session.value = { state: "out", failure: asFailure(error) };
  }
}

export async function signOut(): Promise<void> {
  try {
    await fetchJson<undefined>("/console/session", { method: "DELETE" });
  } finally {
    session.value = { state: "out" };
  }
}
