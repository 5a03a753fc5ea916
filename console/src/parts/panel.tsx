// Layout parts: page heading, panel, empty state, error message and badge.

import type { ComponentChildren } from "preact";

import type { Failure } from "../request.ts";
import { Icon } from "./icon.tsx";
import { Prose } from "./prose.tsx";

interface HeadProps {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly back?: { readonly href: string; readonly title: string };
}

/** The heading of a page. It receives the focus when the page opens. */
export function PageHead({ title, note, actions, back }: HeadProps) {
  return (
    <header class="page-head">
      <div class="page-title">
        {back && (
          <a class="back" href={back.href}>
            <Icon name="back" />
            {back.title}
          </a>
        )}
        <h1 tabIndex={-1}>{title}</h1>
        {note !== undefined && <p class="note">{note}</p>}
      </div>
      {actions !== undefined && <div class="actions">{actions}</div>}
    </header>
  );
}

interface PanelProps {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
  readonly isFlush?: boolean;
  readonly isSteady?: boolean;
}

/** A titled box. `isFlush` removes the padding, for tables; `isSteady` reserves height, so the page does not move when rows change. */
export function Panel({ title, note, actions, children, isFlush = false, isSteady = false }: PanelProps) {
  return (
    <section class={`panel${isFlush ? " flush" : ""}${isSteady ? " steady" : ""}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {note !== undefined && <span class="note">{note}</span>}
        {actions !== undefined && <div class="actions">{actions}</div>}
      </header>
      <div class="panel-body">{children}</div>
    </section>
  );
}

/** An empty state: the reason, and what to do. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** The server's error message and hint. */
export function Refused({ failure }: { failure: Failure | undefined }) {
  if (failure === undefined) return null;
  return (
    <div class="refused" role="alert">
      <Icon name="warn" />
      <div>
        <p>
          <Prose text={failure.message} />
        </p>
        {failure.hint && (
          <p class="note">
            <Prose text={failure.hint} />
          </p>
        )}
      </div>
    </div>
  );
}

export type Tone = "plain" | "good" | "warn" | "bad" | "accent";

/** A coloured label. The text alone carries the meaning. */
export function Badge({ tone = "plain", children }: { tone?: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}
