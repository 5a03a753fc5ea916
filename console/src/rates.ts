// The rate at which counters grow over a time window. A counter that decreased was reset by a restart of the server.

interface Reading {
  readonly at: number;
  readonly counts: ReadonlyMap<string, number>;
}

/** The increase of a counter between two readings. */
export function growth(before: number, after: number): number {
  return after >= before ? after - before : after;
}

export class Rates {
  private readings: Reading[] = [];

  constructor(
    /** The length of the window in seconds. */
    private readonly windowS: number,
  ) {}

  /** The actual length of the window: shorter at the start, longer after a pause. */
  get seconds(): number {
    return (this.readings.at(-1)?.at ?? 0) - (this.readings[0]?.at ?? 0);
  }

  /** Add a reading and return the rate per second of each counter that has an earlier reading. */
  take(at: number, counts: ReadonlyMap<string, number>): ReadonlyMap<string, number> {
    const last = this.readings.at(-1);
    if (last !== undefined && at <= last.at) return new Map();
    this.readings.push({ at, counts });
    while (this.readings.length > 2 && at - (this.readings[1]?.at ?? at) >= this.windowS) this.readings.shift();
    const rates = new Map<string, number>();
    if (this.seconds <= 0) return rates;
    for (const name of counts.keys()) {
      let grown = 0;
      for (let index = 1; index < this.readings.length; index += 1) {
        const before = this.readings[index - 1]?.counts.get(name);
        const after = this.readings[index]?.counts.get(name);
        if (before !== undefined && after !== undefined) grown += growth(before, after);
      }
      if (this.readings[0]?.counts.has(name)) rates.set(name, grown / this.seconds);
    }
    return rates;
  }
}
