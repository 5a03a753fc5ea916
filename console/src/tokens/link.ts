// Parses a link to a stream, `#/tokens?topic=…&key=…`. Browsers do not send the fragment to the server but keep it in the history, so the
// caller must remove it at once.

import type { Suite } from "./chain.ts";

export interface LinkedStream {
  readonly topic: string;
  readonly key: string;
  readonly suite: Suite;
}

/** The stream in a fragment; undefined if there is none. */
export function parseLink(fragment: string): LinkedStream | undefined {
  const [path, query = ""] = fragment.replace(/^#/, "").split("?", 2);
  if (path !== "/tokens") return undefined;
  const given = new URLSearchParams(query);
  const topic = given.get("topic") ?? "";
  const key = given.get("key") ?? "";
  if (topic === "" && key === "") return undefined;
  return { topic: topic.trim().toLowerCase(), key: key.trim(), suite: given.get("suite") === "blake3" ? "blake3" : "sha256" };
}
