// Token streams in a browser: its sockets and its clock, and the link that it was opened with.

import { signal } from "@preact/signals";

import { place } from "../place.ts";
import { type Offered, offered } from "./link.ts";
import type { Socket, Surroundings } from "./listener.ts";

export const browser: Surroundings = {
  open(): Socket {
    const { protocol, host } = window.location;
    // The handlers of ours are given less than the browser's own are, which is the only difference.
    return new WebSocket(`${protocol === "https:" ? "wss" : "ws"}://${host}/v1/relay`) as Socket;
  },
  now: () => performance.now(),
  every(ms, run) {
    const timer = setInterval(run, ms);
    return () => clearInterval(timer);
  },
};

/** What a link named that nobody has listened to yet. It is kept in memory alone. */
export const linked = signal<Offered | undefined>(undefined);

/** Take topic and key out of the address as soon as they are there, also before anybody is signed in. */
export function watchLinks(): void {
  const read = (): void => {
    const found = offered(window.location.hash);
    if (found === undefined) return;
    linked.value = found;
    window.history.replaceState(null, "", "#/tokens");
    place.value = { path: ["tokens"], query: {} };
  };
  window.addEventListener("hashchange", read);
  read();
}
