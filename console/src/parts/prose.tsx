// A sentence of the server's, in which names and commands stand between backticks.

import type { ComponentChild } from "preact";

export function Prose({ text }: { text: string }) {
  return <>{marked(text).map(([piece, isCode]): ComponentChild => (isCode ? <code>{piece}</code> : piece))}</>;
}

/** The pieces of a sentence, and which of them are code. A backtick without its twin is a letter like any other. */
export function marked(text: string): readonly (readonly [string, boolean])[] {
  const pieces = text.split(/`([^`]+)`/);
  return pieces.map((piece, at) => [piece, at % 2 === 1] as const).filter(([piece]) => piece !== "");
}
