// A labelled number. `metric` is the name of the metric that it shows, as the tooltip.

import type { ComponentChildren } from "preact";

import type { Tone } from "./panel.tsx";

interface FigureProps {
  readonly label: string;
  readonly value: string;
  readonly unit?: string;
  readonly note?: ComponentChildren;
  readonly tone?: Tone;
  readonly metric?: string;
}

export function Figure({ label, value, unit, note, tone = "plain", metric }: FigureProps) {
  return (
    <div class={`figure ${tone}`}>
      <dt>{label}</dt>
      <dd>
        <span class="value" data-metric={metric} title={metric}>
          {value}
        </span>
        {unit && <span class="unit"> {unit}</span>}
        {note !== undefined && <span class="note">{note}</span>}
      </dd>
    </div>
  );
}

/** `columns`: the figures of a row, if their number is a multiple of it, so that each row is full. */
export function Figures({ children, columns }: { children: ComponentChildren; columns?: "six" | "four" | "three" }) {
  return <dl class={columns === undefined ? "figures" : `figures ${columns}`}>{children}</dl>;
}
