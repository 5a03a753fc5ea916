// Where the time of batches goes: milliseconds by table and by step.

/** A batch of a query, as `/v1/pipeline` returns it. */
export interface Batch {
  readonly at_us: number;
  readonly rows: number;
  readonly ms: number;
  /** Milliseconds of `read` and, for each table, of `<table>.rows` and `<table>.commit`; of a user-defined query, of Spark's phases. */
  readonly steps: Readonly<Record<string, number>>;
}

/** The time of one table, or of a step that belongs to no table. */
export interface StepTime {
  readonly name: string;
  readonly rows: number;
  readonly commit: number;
  readonly other: number;
  readonly total: number;
}

export interface BatchTimes {
  readonly ms: number;
  readonly rows: number;
  /** Longest first. */
  readonly steps: readonly StepTime[];
}

/** The mean of some batches; of one batch, the batch itself. */
export function meanOf(batches: readonly Batch[]): BatchTimes {
  const mean = (sum: number): number => (batches.length === 0 ? 0 : sum / batches.length);
  const byName = new Map<string, { rows: number; commit: number; other: number }>();
  for (const { steps } of batches) {
    for (const [step, ms] of Object.entries(steps)) {
      const [, table, part] = /^(.+)\.(rows|commit)$/.exec(step) ?? [];
      const name = table ?? step;
      const sums = byName.get(name) ?? { rows: 0, commit: 0, other: 0 };
      sums[part === "rows" || part === "commit" ? part : "other"] += ms;
      byName.set(name, sums);
    }
  }
  const steps = [...byName].map(([name, { rows, commit, other }]) => ({ name, rows: mean(rows), commit: mean(commit), other: mean(other), total: mean(rows + commit + other) }));
  return {
    ms: mean(batches.reduce((sum, { ms }) => sum + ms, 0)),
    rows: mean(batches.reduce((sum, { rows }) => sum + rows, 0)),
    steps: steps.filter(({ total }) => total > 0).sort((one, other) => other.total - one.total),
  };
}
