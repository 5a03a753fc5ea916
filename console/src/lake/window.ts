// Computes the visible rows of a long list. Only those are in the page; spacers replace the others.

export interface Window {
  readonly from: number;
  readonly to: number;
  /** Pixels above and below the rendered rows. */
  readonly above: number;
  readonly below: number;
}

/** Rows rendered beyond the edges, so that scrolling shows no blank area. */
const SPARE = 12;

export function visibleRows(scrolled: number, height: number, rowHeight: number, rows: number): Window {
  const first = Math.floor(Math.max(0, scrolled) / rowHeight) - SPARE;
  const from = Math.max(0, Math.min(first, rows));
  const to = Math.max(from, Math.min(rows, Math.ceil((Math.max(0, scrolled) + height) / rowHeight) + SPARE));
  return { from, to, above: from * rowHeight, below: (rows - to) * rowHeight };
}
