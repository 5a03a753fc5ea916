// What plots are drawn from: a row of figures for each second of the last ten minutes, and one for each ten seconds of the two hours before
// that. A figure that was not known at a time is a gap there, never a zero.

export const FINE_MAX = 600;
export const FOLD = 10;
export const COARSE_MAX = 720;

export type Figure = number | null;

export interface Track {
  /** Seconds since 1970, growing. */
  readonly times: readonly number[];
  readonly columns: readonly (readonly Figure[])[];
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

  /** These columns over the last so many seconds before the newest row. */
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

/** Several rows as one: the mean of what is known, at the time of the last. */
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
