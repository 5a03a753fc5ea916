// A link to a stream, `#/tokens?topic=…&key=…`. A fragment is never sent to a server, but it stays in the history of the browser, so
// whoever reads it takes it out of there at once.

import type { Suite } from "./chain.ts";

export interface Offered {
  readonly topic: string;
  readonly key: string;
  readonly suite: Suite;
}

/** What a fragment offers, or nothing where it names no stream. */
export function offered(fragment: string): Offered | undefined {
  const [place, query = ""] = fragment.replace(/^#/, "").split("?", 2);
  if (place !== "/tokens") return undefined;
  const given = new URLSearchParams(query);
  const topic = given.get("topic") ?? "";
  const key = given.get("key") ?? "";
  if (topic === "" && key === "") return undefined;
  return { topic: topic.trim().toLowerCase(), key: key.trim(), suite: given.get("suite") === "blake3" ? "blake3" : "sha256" };
}
