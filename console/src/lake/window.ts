// Which rows of a long list are in sight. Only those are in the page; empty space stands for the others.

export interface Window {
  readonly from: number;
  readonly to: number;
  /** Pixels above and below what is drawn. */
  readonly above: number;
  readonly below: number;
}

/** Rows drawn beyond the edges, so that a turn of the wheel does not show emptiness. */
const SPARE = 12;

export function inSight(scrolled: number, height: number, rowHeight: number, rows: number): Window {
  const first = Math.floor(Math.max(0, scrolled) / rowHeight) - SPARE;
  const from = Math.max(0, Math.min(first, rows));
  const to = Math.max(from, Math.min(rows, Math.ceil((Math.max(0, scrolled) + height) / rowHeight) + SPARE));
  return { from, to, above: from * rowHeight, below: (rows - to) * rowHeight };
}
