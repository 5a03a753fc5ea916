// A query result as a table. Only the visible rows are rendered.

import { useEffect, useRef, useState } from "preact/hooks";

import { download } from "../downloads.ts";
import { Button } from "../parts/button.tsx";
import { Badge } from "../parts/panel.tsx";
import { plural, span } from "../format.ts";
import { type Answer, cellText, cut, isNumeric, toCsv } from "./sql.ts";
import { visibleRows } from "./window.ts";

const ROW_PX = 29;

export function Result({ answer, title }: { answer: Answer; title: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [scrolled, scroll] = useState(0);
  useEffect(() => {
    if (box.current !== null) box.current.scrollTop = 0;
    scroll(0);
  }, [answer]);
  const { columns, types, rows, truncated, ms } = answer;
  const { from, to, above, below } = visibleRows(scrolled, box.current?.clientHeight ?? 480, ROW_PX, rows.length);
  const numeric = types.map(isNumeric);
  return (
    <div class="result">
      <div class="row" role="status">
        <span>
          {plural(rows.length, "row")} in {span(ms)}
        </span>
        {truncated && <Badge tone="warn">truncated: the result has more rows</Badge>}
        <Button icon="export" kind="quiet" label="Save as CSV" onPress={() => download("answer.csv", "text/csv", toCsv(answer))}>
          CSV
        </Button>
      </div>
      <div class="table-box result-box" ref={box} role="region" aria-label={title} tabIndex={0} onScroll={(event) => scroll(event.currentTarget.scrollTop)}>
        <table aria-label={title} aria-rowcount={rows.length + 1}>
          <thead>
            <tr>
              {columns.map((column, index) => (
                <th key={index} scope="col" class={numeric[index] ? "number" : undefined}>
                  {column} <span class="type">{types[index]}</span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {above > 0 && <Space height={above} width={columns.length} />}
            {rows.slice(from, to).map((row, index) => (
              <tr key={from + index} aria-rowindex={from + index + 2}>
                {row.map((value, place) => (
                  <Cell key={place} value={value} isNumber={numeric[place] ?? false} />
                ))}
              </tr>
            ))}
            {below > 0 && <Space height={below} width={columns.length} />}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Cell({ value, isNumber }: { value: unknown; isNumber: boolean }) {
  if (value === null || value === undefined) return <td class="note">null</td>;
  const text = cellText(value);
  return (
    <td class={isNumber ? "number" : "mono"} title={text.length > 40 ? text : undefined}>
      {cut(text)}
    </td>
  );
}

function Space({ height, width }: { height: number; width: number }) {
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={width} style={{ height: `${height}px` }} />
    </tr>
  );
}
