// The browser environment of the token viewer: sockets, clock, and links that contain a key.

import { signal } from "@preact/signals";

import { route } from "../router.ts";
import { type LinkedStream, parseLink } from "./link.ts";
import type { Socket, Environment } from "./listener.ts";

export const browser: Environment = {
  open(): Socket {
    const { protocol, host } = window.location;
    // The cast only narrows the event types of the handlers.
    return new WebSocket(`${protocol === "https:" ? "wss" : "ws"}://${host}/v1/relay`) as Socket;
  },
  now: () => performance.now(),
  every(ms, run) {
    const timer = setInterval(run, ms);
    return () => clearInterval(timer);
  },
};

/** The stream of a link that was opened, until the viewer starts. Kept in memory only. */
export const linked = signal<LinkedStream | undefined>(undefined);

/** Remove topic and key from the URL as soon as they appear, even before sign-in. */
export function watchLinks(): void {
  const read = (): void => {
    const found = parseLink(window.location.hash);
    if (found === undefined) return;
    linked.value = found;
    window.history.replaceState(null, "", "#/tokens");
    route.value = { path: ["tokens"], query: {} };
  };
  window.addEventListener("hashchange", read);
  read();
}
