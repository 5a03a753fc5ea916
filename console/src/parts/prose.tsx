// A message of the server, with text in backticks shown as code.

import type { ComponentChild } from "preact";

export function Prose({ text }: { text: string }) {
  return <>{marked(text).map(([piece, isCode]): ComponentChild => (isCode ? <code>{piece}</code> : piece))}</>;
}

/** The pieces of a message, and whether each is code. An unmatched backtick is plain text. */
export function marked(text: string): readonly (readonly [string, boolean])[] {
  const pieces = text.split(/`([^`]+)`/);
  return pieces.map((piece, at) => [piece, at % 2 === 1] as const).filter(([piece]) => piece !== "");
}
