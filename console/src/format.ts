// Formats numbers and times. Counts are never rounded, so they can be compared with other tools.

const COUNT = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 3 });
const RATES = [2, 1, 0].map((digits) => new Intl.NumberFormat("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const UNITS = ["B", "kB", "MB", "GB", "TB"] as const;
const NONE = "–";

/** A count, not rounded. */
export function count(value: number | undefined | null): string {
  return value === undefined || value === null || Number.isNaN(value) ? NONE : COUNT.format(value);
}

/** A rate per second, with fewer decimals for larger values. */
export function rate(value: number | undefined | null): string {
  if (value === undefined || value === null || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  const digits = value < 1 ? 0 : value < 100 ? 1 : 2;
  return RATES[digits]?.format(value) ?? NONE;
}

/** A duration: `0.8 ms`, `12 ms`, `3.4 s`, `5 min`, `2 h 5 min`. */
export function span(ms: number | undefined | null): string {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return NONE;
  if (ms === 0) return "0 ms";
  if (ms < 0) return `−${span(-ms)}`;
  if (ms < 10) return `${Number(ms.toFixed(2))} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${Number((ms / 1_000).toFixed(ms < 10_000 ? 1 : 0))} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60_000) / 1_000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A percentile: the server keeps it within 12.5 %, so two digits are all it has. */
export function about(ms: number | undefined | null): string {
  return span(ms === undefined || ms === null ? ms : Number(ms.toPrecision(2)));
}

export function bytes(value: number | undefined | null): string {
  if (value === undefined || value === null || Number.isNaN(value)) return NONE;
  let unit = 0;
  let size = value;
  while (size >= 1_000 && unit < UNITS.length - 1) {
    size /= 1_000;
    unit += 1;
  }
  return `${unit === 0 ? size : Number(size.toPrecision(3))} ${UNITS[unit]}`;
}

/** The local time of day with milliseconds. */
export function clock(when: number | string | Date): string {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (part: number): string => String(part).padStart(2, "0");
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${ms}`;
}

/** The local date and time of day. */
export function moment(when: number | string | Date): string {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return NONE;
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** The time since then. */
export function ago(when: number | string | Date, now: number = Date.now()): string {
  return `${span(Math.max(0, now - new Date(when).getTime()))} ago`;
}

/** `1 row`, `2 rows`. */
export function plural(value: number, one: string, many: string = `${one}s`): string {
  return `${COUNT.format(value)} ${value === 1 ? one : many}`;
}
