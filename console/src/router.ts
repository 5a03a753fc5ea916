// The route of the console: the part of the URL after `#`. It contains the whole view, so a URL can be bookmarked and shared.

import { signal } from "@preact/signals";

export interface Route {
  readonly path: readonly string[];
  readonly query: Readonly<Record<string, string>>;
}

export type Query = Readonly<Record<string, string | undefined>>;

export function parse(hash: string): Route {
  const text = hash.startsWith("#") ? hash.slice(1) : hash;
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const query = Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
  return { path: path.split("/").filter(Boolean).map(decoded), query };
}

/** The URL of a route. Empty and undefined query values are omitted. */
export function href(path: readonly string[], query: Query = {}): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  const search = kept.length > 0 ? `?${new URLSearchParams(kept)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${search}`;
}

export const route = signal<Route>({ path: [], query: {} });

export function navigate(path: readonly string[], query: Query = {}): void {
  window.location.hash = href(path, query);
}

/** Change the query without a new entry in the browser history, because filters change with every key. */
export function updateQuery(query: Query): void {
  const address = href(route.value.path, { ...route.value.query, ...query });
  window.history.replaceState(null, "", address);
  route.value = parse(address);
}

export function watchRoute(): void {
  const read = (): void => {
    route.value = parse(window.location.hash);
  };
  window.addEventListener("hashchange", read);
  read();
}

/** A decoded path segment; one with an invalid escape is returned unchanged. */
export function decoded(piece: string): string {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}
