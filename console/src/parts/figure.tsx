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

/** `isEven`: twelve figures, in full rows at every width. */
export function Figures({ children, isEven = false }: { children: ComponentChildren; isEven?: boolean }) {
  return <dl class={isEven ? "figures even" : "figures"}>{children}</dl>;
}
