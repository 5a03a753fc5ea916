// A virtual list: only the visible rows are in the page. It follows the newest row; scrolling up pauses it. The arrow keys select a row and
// Enter opens it.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { Follower } from "../follower.ts";
import { isGap, type Row, summary } from "../rows.ts";
import { clock, plural } from "../format.ts";

/** Heights in pixels; they must match the style sheet. */
const ROW_PX = 28;
const TALL_PX = 46;
const HEAD_PX = 32;
/** Rows rendered beyond each edge. */
const MARGIN = 8;

interface RowListProps {
  readonly follower: Follower;
  readonly onOpen: (row: Row) => void;
}

export function RowList({ follower, onOpen }: RowListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  // Counted from the first row ever received, so the selection stays on its row when older rows are dropped.
  const [chosenRow, chooseRow] = useState<number | undefined>(undefined);
  const rowPx = useRowHeight();
  const version = follower.version.value;
  const isPaused = follower.isPaused.value;
  const { entries } = follower;
  const total = entries.length;
  const chosen = chosenRow === undefined || chosenRow < entries.dropped ? undefined : chosenRow - entries.dropped;
  const choose = (index: number): void => chooseRow(index + entries.dropped);
  const lastTop = useRef(0);
  const lastTotal = useRef(0);

  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const watcher = new ResizeObserver(() => setHeight(host.clientHeight));
    watcher.observe(host);
    return () => watcher.disconnect();
  }, []);

  useLayoutEffect(() => {
    const host = box.current;
    if (host === null || isPaused) return;
    host.scrollTop = host.scrollHeight;
    lastTop.current = host.scrollTop;
    lastTotal.current = total;
    setTop(host.scrollTop);
  }, [version, isPaused, height, rowPx]);

  const scrolled = (): void => {
    const host = box.current;
    if (host === null) return;
    // A list that became shorter scrolls by itself. Otherwise the user scrolled.
    if (!isPaused && host.scrollTop < lastTop.current - rowPx && total >= lastTotal.current) follower.pause();
    lastTop.current = host.scrollTop;
    setTop(host.scrollTop);
  };

  const move = (by: number): void => {
    if (!isPaused) follower.pause();
    const next = Math.min(total - 1, Math.max(0, (chosen ?? total) + by));
    choose(next);
    const host = box.current;
    if (host === null) return;
    if (next * rowPx < host.scrollTop) host.scrollTop = next * rowPx;
    else host.scrollTop = Math.max(host.scrollTop, (next + 1) * rowPx + HEAD_PX - host.clientHeight);
  };

  const pressed = (event: KeyboardEvent): void => {
    const entry = chosen === undefined ? undefined : entries.at(chosen);
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && entry !== undefined && !isGap(entry)) onOpen(entry);
    else return;
    event.preventDefault();
  };

  const from = Math.max(0, Math.floor(top / rowPx) - MARGIN);
  const to = Math.min(total, Math.ceil((top + height) / rowPx) + MARGIN);
  const isDrawn = (index: number | undefined): boolean => index !== undefined && index >= from && index < to;
  return (
    <div class="rowlist">
      <div
        class="rowlist-box"
        ref={box}
        role="grid"
        aria-label="Journal rows"
        aria-rowcount={total + 1}
        tabIndex={0}
        aria-activedescendant={isDrawn(chosen) ? `row-${(chosen ?? 0) + entries.dropped}` : undefined}
        onScroll={scrolled}
        onKeyDown={pressed}
      >
        <div class="rowlist-top" role="rowgroup">
          <div class="rowlist-head" role="row" aria-rowindex={1}>
            {["Time", "Door", "Event", "Channel", "Kind", "From", "Content"].map((title) => (
              <span key={title} role="columnheader">
                {title}
              </span>
            ))}
          </div>
        </div>
        <div class="rowlist-space" role="rowgroup" style={{ height: `${total * rowPx}px` }}>
          <div class="rowlist-seen" role="presentation" style={{ transform: `translateY(${from * rowPx}px)` }}>
            {entries.slice(from, to).map((entry, place) => {
              const index = from + place;
              const shared = {
                id: `row-${index + entries.dropped}`,
                role: "row" as const,
                "aria-rowindex": index + 2,
                "aria-selected": index === chosen,
              };
              return isGap(entry) ? (
                <div key={shared.id} {...shared} class="rowlist-gap">
                  <span role="gridcell">{plural(entry.missed, "row")} missed: too many arrived at once, or the journal no longer has them</span>
                </div>
              ) : (
                <div
                  key={shared.id}
                  {...shared}
                  class={`rowlist-row ${TONES[entry.event] ?? ""}`}
                  onClick={() => {
                    choose(index);
                    onOpen(entry);
                  }}
                >
                  <Cells row={entry} />
                </div>
              );
            })}
          </div>
        </div>
      </div>
    </div>
  );
}

const TONES: Readonly<Record<string, string>> = { dead: "bad", drop: "bad", nack: "warn", timeout: "warn", kick: "warn", purge: "warn", ack: "quiet" };

function Cells({ row }: { row: Row }) {
  const from = row.sender ?? row.peer ?? "";
  return (
    <>
      <span role="gridcell" class="time">
        {clock(row.recorded_at)}
      </span>
      <span role="gridcell" class="door">
        {row.door}
      </span>
      <span role="gridcell" class="event">
        {row.event}
      </span>
      <span role="gridcell" class="channel">
        {row.channel}
      </span>
      <span role="gridcell" class="kind">
        {row.kind}
      </span>
      <span role="gridcell" class="from">
        {from}
      </span>
      <span role="gridcell" class="content">
        {summary(row)}
      </span>
    </>
  );
}

function useRowHeight(): number {
  const [isNarrow, set] = useState(() => window.matchMedia(NARROW).matches);
  useEffect(() => {
    const media = window.matchMedia(NARROW);
    const look = (): void => set(media.matches);
    media.addEventListener("change", look);
    return () => media.removeEventListener("change", look);
  }, []);
  return isNarrow ? TALL_PX : ROW_PX;
}

const NARROW = "(max-width: 760px)";
