// The difference between the clocks of server and browser. Leases expire by the server's clock, and a laptop's may be minutes off.

/** Smaller differences are ignored: the header has a resolution of one second, and a response takes time. */
const LEAST_MS = 2_000;

let skewMs = 0;

/** Measure the skew from the `Date` header of a response. */
export function updateSkew(header: string | null, now: number = Date.now()): void {
  const serverMs = header === null ? NaN : Date.parse(header);
  if (Number.isNaN(serverMs)) return;
  // The header truncates to seconds, so the mean error is half a second.
  const apart = serverMs + 500 - now;
  skewMs = Math.abs(apart) < LEAST_MS ? 0 : apart;
}

/** Convert a time of the browser's clock to the server's. */
export function serverTime(now: number): number {
  return now + skewMs;
}
