// The verified text of a stream: runs of text, and marks where messages are missing.

import type { Skipped } from "./verifier.ts";
import type { Payload } from "./messages.ts";

/** Characters kept; beyond that the oldest are dropped and counted. */
export const CHARACTERS_MAX = 400_000;

/** Characters of a run. Runs are short, so the browser lays out only the end of a long text again. */
const RUN_MAX = 4_000;

export type Run = { readonly kind: "text"; readonly text: string } | { readonly kind: "gap" } | { readonly kind: "end"; readonly text: string };

export class Transcript {
  runs: readonly Run[] = [];
  tokens = 0;
  heartbeats = 0;
  /** Characters dropped. */
  cut = 0;
  private length = 0;

  add(payloads: readonly (Payload | Skipped)[]): void {
    let text = "";
    for (const payload of payloads) {
      if (payload.kind === "token") {
        this.tokens += 1;
        text += payload.text;
      } else if (payload.kind === "heartbeat") {
        this.heartbeats += 1;
      } else if (payload.kind === "skipped") {
        this.append(text);
        text = "";
        this.runs = [...this.runs, { kind: "gap" }];
      }
    }
    this.append(text);
  }

  /** Mark the end of a stream that another one follows. */
  end(text: string): void {
    this.runs = [...this.runs, { kind: "end", text }];
  }

  /** The whole text, for copying. */
  plain(): string {
    return this.runs.map((run) => (run.kind === "text" ? run.text : run.kind === "gap" ? "\n[missing]\n" : `\n[${run.text}]\n`)).join("");
  }

  private append(text: string): void {
    if (text === "") return;
    this.length += text.length;
    const last = this.runs.at(-1);
    this.runs =
      last?.kind === "text" && last.text.length < RUN_MAX
        ? [...this.runs.slice(0, -1), { kind: "text", text: last.text + text }]
        : [...this.runs, { kind: "text", text }];
    // Trim a quarter at a time, so a long text is not copied for every token.
    if (this.length > CHARACTERS_MAX * 1.25) this.trim(this.length - CHARACTERS_MAX);
  }

  private trim(excess: number): void {
    let left = excess;
    const runs = [...this.runs];
    while (left > 0 && runs.length > 0) {
      const first = runs[0];
      if (first?.kind === "text" && first.text.length > left) {
        runs[0] = { kind: "text", text: first.text.slice(left) };
        left = 0;
      } else {
        left -= first?.kind === "text" ? first.text.length : 0;
        runs.shift();
      }
    }
    this.runs = runs;
    this.length -= excess;
    this.cut += excess;
  }
}
