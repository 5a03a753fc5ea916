// JSON as people read and type it.

/** A value, or a text that is JSON, with indents; any other text as it is. */
export function pretty(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? String(value);
  const start = value.trimStart()[0];
  if (start !== "{" && start !== "[") return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

export type Parsed = { readonly value: unknown; readonly error?: undefined } | { readonly error: string };

/** What was typed, or what is wrong with it and in which line. */
export function parseTyped(text: string): Parsed {
  if (text.trim() === "") return { error: "type a JSON value, such as {}" };
  try {
    return { value: JSON.parse(text) as unknown };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const position = /position (\d+)/.exec(message)?.[1];
    if (position === undefined) return { error: `not JSON: ${message}` };
    const before = text.slice(0, Number(position)).split("\n");
    return { error: `not JSON at line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}` };
  }
}
