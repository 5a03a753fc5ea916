// How far the server's clock is from the browser's. Leases end by the server's, and a laptop's may be minutes off.

/** The header has whole seconds, and an answer takes its time: less than this is no difference. */
const LEAST_MS = 2_000;

let skewMs = 0;

/** Learn from the `Date` of an answer. */
export function learnSkew(header: string | null, now: number = Date.now()): void {
  const told = header === null ? NaN : Date.parse(header);
  if (Number.isNaN(told)) return;
  // The second that the header names has half gone by, on the average.
  const apart = told + 500 - now;
  skewMs = Math.abs(apart) < LEAST_MS ? 0 : apart;
}

/** A time of this browser's clock as the server's would show it. */
export function serverTime(now: number): number {
  return now + skewMs;
}
