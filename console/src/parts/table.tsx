// A table that sorts by its headings. It scrolls in its own box, so a narrow page does not scroll sideways.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type Key, type Order, sorted } from "../order.ts";

export interface Column<T> {
  readonly key: string;
  readonly title: ComponentChildren;
  readonly cell: (row: T) => ComponentChildren;
  /** The sort key; without it the column cannot be sorted. */
  readonly sort?: (row: T) => Key;
  readonly isNumber?: boolean;
  /** The tooltip of the heading. */
  readonly help?: string;
}

interface TableProps<T> {
  /** The accessible name of the table. */
  readonly label: string;
  readonly columns: readonly Column<T>[];
  readonly rows: readonly T[];
  readonly keyOf: (row: T) => string | number;
  /** The initial order: column `key`, and whether it is descending. */
  readonly order?: Order;
  /** Shown instead of a table without rows. */
  readonly empty?: ComponentChildren;
}

export function Table<T>({ label, columns, rows, keyOf, order: first, empty }: TableProps<T>) {
  const [order, setOrder] = useState<Order | undefined>(first);
  const by = columns.find(({ key }) => key === order?.key)?.sort;
  const shown = by === undefined || order === undefined ? rows : sorted(rows, by, order.isFalling);
  const turn = (column: Column<T>): void => {
    const isFalling = order?.key === column.key ? !order.isFalling : column.isNumber === true;
    setOrder({ key: column.key, isFalling });
  };
  const box = useRef<HTMLDivElement>(null);
  const hidden = useHidden(box, rows);
  if (rows.length === 0 && empty !== undefined) return <>{empty}</>;
  return (
    <>
      <div class="table-box" ref={box} role="group" aria-label={label} tabIndex={0}>
        <table aria-label={label}>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  class={column.isNumber ? "number" : undefined}
                  title={column.help}
                  aria-sort={column.sort && order?.key === column.key ? (order.isFalling ? "descending" : "ascending") : undefined}
                >
                  {column.sort ? (
                    <button type="button" onClick={() => turn(column)}>
                      {column.title}
                    </button>
                  ) : (
                    column.title
                  )}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <tr key={keyOf(row)}>
                {columns.map((column) => (
                  <td key={column.key} class={column.isNumber ? "number" : undefined}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {hidden !== "" && <p class="note scrolls">Scroll for more {hidden}</p>}
    </>
  );
}

/** What of the content is outside of a box: rows, columns, both or nothing. */
function useHidden(box: { readonly current: HTMLElement | null }, content: unknown): string {
  const [hidden, set] = useState("");
  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const look = (): void => {
      const parts = [host.scrollHeight > host.clientHeight + 1 ? "rows" : "", host.scrollWidth > host.clientWidth + 1 ? "columns" : ""];
      set(parts.filter(Boolean).join(" and "));
    };
    look();
    const watcher = new ResizeObserver(look);
    watcher.observe(host);
    return () => watcher.disconnect();
  }, [content]);
  return hidden;
}
