// The sort order of table rows. The sort is stable, and unknown values come last in both directions.

export type Key = string | number | null | undefined;

export interface Order {
  readonly key: string;
  readonly isFalling: boolean;
}

const words = new Intl.Collator("en-GB", { numeric: true });

export function sorted<T>(rows: readonly T[], by: (row: T) => Key, isFalling: boolean): T[] {
  const sign = isFalling ? -1 : 1;
  return rows
    .map((row) => ({ row, key: by(row) }))
    .sort((a, b) => {
      if (a.key == null || b.key == null) return Number(a.key == null) - Number(b.key == null);
      return sign * compared(a.key, b.key);
    })
    .map(({ row }) => row);
}

function compared(a: string | number, b: string | number): number {
  return typeof a === "number" && typeof b === "number" ? a - b : words.compare(String(a), String(b));
}
