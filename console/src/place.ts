// Where in the console one is: the part of the address after `#`. The server knows one page, so a view can be shared by its address alone.

import { signal } from "@preact/signals";

export interface Place {
  readonly path: readonly string[];
  readonly query: Readonly<Record<string, string>>;
}

export type Query = Readonly<Record<string, string | undefined>>;

export function parse(hash: string): Place {
  const text = hash.startsWith("#") ? hash.slice(1) : hash;
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const query = Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
  return { path: path.split("/").filter(Boolean).map(decoded), query };
}

/** The address of a place. What is empty or undefined in the query is left out. */
export function href(path: readonly string[], query: Query = {}): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  const search = kept.length > 0 ? `?${new URLSearchParams(kept)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${search}`;
}

export const place = signal<Place>({ path: [], query: {} });

export function go(path: readonly string[], query: Query = {}): void {
  window.location.hash = href(path, query);
}

/** Change the query of this place without a step in the browser's history: filters change with every letter. */
export function amend(query: Query): void {
  const address = href(place.value.path, { ...place.value.query, ...query });
  window.history.replaceState(null, "", address);
  place.value = parse(address);
}

export function watchPlace(): void {
  const read = (): void => {
    place.value = parse(window.location.hash);
  };
  window.addEventListener("hashchange", read);
  read();
}

/** A piece of an address without its escapes; one that is badly written as it is. */
export function decoded(piece: string): string {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}
