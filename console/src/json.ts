// JSON without loss of digits: integers beyond 2^53, which JavaScript would round, keep their text.

/** An integer beyond 2^53. */
export class Digits {
  constructor(readonly text: string) {}

  toString(): string {
    return this.text;
  }

  toJSON(): string {
    return MARK + this.text;
  }
}

/** Marks integers that are encoded as strings. It is random per page load, so no sender can forge it. */
const MARK = `digits ${Math.random()} `;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");
const LONG = /\d{16}/;
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const INTEGER = /^-?\d+$/;

/** The value of a JSON text, with `Digits` where numbers would round. */
export function parseExact(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text) as unknown;
  JSON.parse(text); // rejects invalid JSON before the replacement below could make it valid
  const marked = text.replace(STRING_OR_NUMBER, (token) =>
    INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  );
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? new Digits(value.slice(MARK.length)) : value,
  ) as unknown;
}

/** A value as JSON, with `Digits` as numbers. */
export function written(value: unknown, indent?: number): string {
  const text = JSON.stringify(value, null, indent) as string | undefined;
  return text === undefined ? String(value) : text.replace(MARKED, "$1");
}

/** A value, or a text that is JSON, indented; any other text unchanged. */
export function pretty(value: unknown): string {
  if (typeof value !== "string") return written(value, 2);
  const start = value.trimStart()[0];
  if (start !== "{" && start !== "[") return value;
  try {
    return written(parseExact(value), 2);
  } catch {
    return value;
  }
}

/** Characters of a preview. */
const PREVIEW_MAX = 240;

/** A value as one short line. */
export function preview(value: unknown): string {
  const text = typeof value === "string" ? value : written(value);
  return text.slice(0, PREVIEW_MAX).replace(/\s+/g, " ");
}

export type Parsed = { readonly value: unknown; readonly error?: undefined } | { readonly error: string };

/** The parsed input, or an error with its position. */
export function parseTyped(text: string): Parsed {
  if (text.trim() === "") return { error: "enter a JSON value, such as {}" };
  try {
    return { value: parseExact(text) };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const position = /position (\d+)/.exec(message)?.[1];
    if (position === undefined) return { error: `invalid JSON: ${message}` };
    const before = text.slice(0, Number(position)).split("\n");
    return { error: `invalid JSON at line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}` };
  }
}
