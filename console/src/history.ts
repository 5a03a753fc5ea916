// The data of the plots. An unknown value is a gap, not zero. The server keeps the history of its own metrics; the page keeps that of one
// stream while it is open: one row per second for the last ten minutes, one per ten seconds for the two hours before.

export const FINE_MAX = 600;
export const FOLD = 10;
export const COARSE_MAX = 720;

export type Figure = number | null;

export interface Track {
  /** Seconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly columns: readonly (readonly Figure[])[];
}

/** What `/v1/history` returns: counters are rates per second. */
export interface ServerHistory {
  readonly times: readonly number[];
  readonly columns: Readonly<Record<string, readonly Figure[]>>;
}

/** Envelopes that wait for a consumer: the depth without dead letters, which wait for a person. */
export const READY = "ready";

/** A function that returns the track of some metrics. */
export function tracksOf(history: ServerHistory | undefined): (metrics: readonly string[]) => Track {
  const { times, columns } = history ?? { times: [], columns: {} };
  const depth = columns["penstock_q_depth"] ?? [];
  const dead = columns["penstock_dead_letters"] ?? [];
  const all: ServerHistory["columns"] = { ...columns, [READY]: depth.map((many, row) => (many === null ? null : many - (dead[row] ?? 0))) };
  return (metrics) => ({ times, columns: metrics.map((name) => all[name] ?? times.map(() => null)) });
}

interface Row {
  readonly at: number;
  readonly figures: Readonly<Record<string, number>>;
}

export class History {
  private coarse: Row[] = [];
  private fine: Row[] = [];

  push(at: number, figures: Readonly<Record<string, number | undefined>>): void {
    const known = Object.entries(figures).filter((entry): entry is [string, number] => Number.isFinite(entry[1]));
    const last = this.fine.at(-1);
    if (last !== undefined && at <= last.at) return;
    this.fine.push({ at, figures: Object.fromEntries(known) });
    if (this.fine.length >= FINE_MAX + FOLD) {
      this.coarse.push(folded(this.fine.splice(0, FOLD)));
      if (this.coarse.length > COARSE_MAX) this.coarse.shift();
    }
  }

  /** These columns over the last `seconds` before the newest row. */
  track(names: readonly string[], seconds: number): Track {
    const rows = [...this.coarse, ...this.fine];
    const from = (rows.at(-1)?.at ?? 0) - seconds;
    const kept = rows.filter((row) => row.at >= from);
    return {
      times: kept.map((row) => row.at),
      columns: names.map((name) => kept.map((row) => row.figures[name] ?? null)),
    };
  }

  get size(): number {
    return this.coarse.length + this.fine.length;
  }

  clear(): void {
    this.coarse = [];
    this.fine = [];
  }
}

/** Merge rows into one: the mean of the known values, at the time of the last row. */
function folded(rows: readonly Row[]): Row {
  const sums = new Map<string, [sum: number, count: number]>();
  for (const row of rows) {
    for (const [name, figure] of Object.entries(row.figures)) {
      const [sum, count] = sums.get(name) ?? [0, 0];
      sums.set(name, [sum + figure, count + 1]);
    }
  }
  const means = [...sums].map(([name, [sum, count]]) => [name, sum / count] as const);
  return { at: rows.at(-1)?.at ?? 0, figures: Object.fromEntries(means) };
}
