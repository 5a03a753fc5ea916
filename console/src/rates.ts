// How fast counters grow, over the last few seconds. A counter that fell was started again from nought with its server.

/** Over how long a rate is taken. */
const WINDOW_S = 5;

interface Reading {
  readonly at: number;
  readonly counts: ReadonlyMap<string, number>;
}

/** What a counter grew by between two readings. */
export function growth(before: number, after: number): number {
  return after >= before ? after - before : after;
}

export class Rates {
  private readings: Reading[] = [];

  /** Take a reading and answer the growth of each counter per second; a counter without an earlier reading has none. */
  take(at: number, counts: ReadonlyMap<string, number>): ReadonlyMap<string, number> {
    const last = this.readings.at(-1);
    if (last !== undefined && at <= last.at) return new Map();
    this.readings.push({ at, counts });
    while (this.readings.length > 2 && at - (this.readings[1]?.at ?? at) >= WINDOW_S) this.readings.shift();
    const rates = new Map<string, number>();
    const seconds = at - (this.readings[0]?.at ?? at);
    if (seconds <= 0) return rates;
    for (const name of counts.keys()) {
      let grown = 0;
      for (let index = 1; index < this.readings.length; index += 1) {
        const before = this.readings[index - 1]?.counts.get(name);
        const after = this.readings[index]?.counts.get(name);
        if (before !== undefined && after !== undefined) grown += growth(before, after);
      }
      if (this.readings[0]?.counts.has(name)) rates.set(name, grown / seconds);
    }
    return rates;
  }
}
