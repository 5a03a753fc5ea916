// A plot over time. The legend shows the latest values as text, and a table below has the same data for screen readers.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import type { Track } from "../history.ts";
import { isDark } from "../theme.ts";
import { clock, moment } from "../format.ts";
import { Panel } from "./panel.tsx";

export interface Series {
  readonly label: string;
  /** One of the colours `--s1` to `--s6`; by default the position of the series. */
  readonly colour?: number;
}

interface PlotProps {
  readonly title: string;
  /** Times in seconds, and a column for each series. */
  readonly track: Track;
  readonly series: readonly Series[];
  /** Formats a value in the legend, the table and on the axis. */
  readonly format: (value: number | null | undefined) => string;
  readonly height?: number;
}

/** From this range on, a time has a date. */
const DATED_S = 100_000;

/** A time of a plot as text: with the date if the range is long. */
function at(track: Track, index: number): string {
  const time = (track.times[index] ?? 0) * 1000;
  return (track.times.at(-1) ?? 0) - (track.times[0] ?? 0) > DATED_S ? moment(time).replace(/:\d\d$/, "") : clock(time).slice(0, 8);
}

/** The minimum width in seconds, so that the first samples do not fill the plot. */
const LEAST_S = 60;
/** Rows of the table. */
const TABLE_ROWS = 12;

export function Plot({ title, track, series, format, height = 150 }: PlotProps) {
  const [hovered, hover] = useState<number | null>(null);
  const index = hovered ?? track.times.length - 1;
  return (
    <Panel title={title} note={hovered === null ? undefined : at(track, hovered)}>
      <Canvas track={track} series={series} format={format} height={height} onHover={hover} />
      <ul class="legend" aria-label={`${title}: latest values`}>
        {series.map(({ label, colour }, place) => (
          <li key={label}>
            <span class={`swatch s${colour ?? place + 1}`} aria-hidden="true" />
            {label} <b>{format(track.columns[place]?.[index])}</b>
          </li>
        ))}
      </ul>
      <details class="as-table">
        <summary>Show as table</summary>
        <TrackTable title={title} track={track} series={series} format={format} />
      </details>
    </Panel>
  );
}

function TrackTable({ title, track, series, format }: Omit<PlotProps, "height">) {
  const step = Math.max(1, Math.ceil(track.times.length / TABLE_ROWS));
  const picked = track.times.map((_, index) => index).filter((index) => (track.times.length - 1 - index) % step === 0);
  return (
    <div class="table-box" role="group" aria-label={`${title} as a table`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {series.map(({ label }) => (
              <th key={label} scope="col" class="number">
                {label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {picked.reverse().map((index) => (
            <tr key={track.times[index]}>
              <th scope="row">{at(track, index)}</th>
              {series.map(({ label }, place) => (
                <td key={label} class="number">
                  {format(track.columns[place]?.[index])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface CanvasProps extends Omit<PlotProps, "title" | "height"> {
  readonly height: number;
  readonly onHover: (index: number | null) => void;
}

function Canvas({ track, series, format, height, onHover }: CanvasProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const dark = isDark.value;
  const names = series.map(({ label }) => label).join("\n");
  const data = useMemo(() => [track.times, ...track.columns] as unknown as uPlot.AlignedData, [track]);

  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const made = new uPlot(options(host, series, format, height, onHover), data, host);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: host.clientWidth, height }));
    watcher.observe(host);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, dark, height]);

  useEffect(() => plot.current?.setData(data), [data]);
  return <div class="canvas" ref={box} aria-hidden="true" />;
}

function options(
  host: HTMLElement,
  series: readonly Series[],
  format: PlotProps["format"],
  height: number,
  onHover: CanvasProps["onHover"],
): uPlot.Options {
  const style = getComputedStyle(host);
  const probe = (name: string): string => colourOf(host, name);
  const axis = {
    stroke: probe("--muted"),
    font: `11px ${style.fontFamily}`,
    ticks: { show: false },
    grid: { stroke: probe("--line"), width: 1 },
  };
  return {
    width: host.clientWidth,
    height,
    padding: [10, 10, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { range: (_, min, max) => [Math.min(min, max - LEAST_S), max] }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, space: 70, size: 24, values: (_, ticks) => ticks.map((tick) => axisTime(tick, (ticks.at(-1) ?? 0) - (ticks[0] ?? 0))) },
      { ...axis, space: 32, size: 56, values: (_, ticks) => ticks.map((tick) => format(tick)) },
    ],
    series: [
      {},
      ...series.map(({ label, colour }, place) => ({
        label,
        stroke: probe(`--s${colour ?? place + 1}`),
        width: 1.5,
        points: { show: false },
      })),
    ],
    hooks: { setCursor: [(made) => onHover(made.cursor.idx ?? null)] },
  };
}

/** A time on the axis: the date if the ticks are days apart. */
function axisTime(seconds: number, rangeS: number): string {
  return rangeS > DATED_S ? new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : clock(seconds * 1000).slice(0, 8);
}

/** A custom property as a colour for the canvas. The browser must resolve `light-dark()` first. */
function colourOf(host: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  host.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
