// JSON as people read and type it, to the digit: integers that a number of the browser's would round keep the digits they came with.

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

/** Tells digits from text while both are text. Nobody else can write it: it is another one each time the page is loaded. */
const MARK = `digits ${Math.random()} `;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");
const LONG = /\d{16}/;
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const INTEGER = /^-?\d+$/;

/** The value of a JSON text, with `Digits` where numbers would round. */
export function parseExact(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text) as unknown;
  JSON.parse(text); // what is no JSON does not become some by what follows
  const marked = text.replace(STRING_OR_NUMBER, (token) =>
    INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  );
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? new Digits(value.slice(MARK.length)) : value,
  ) as unknown;
}

/** A value as JSON, `Digits` as the numbers they are. */
export function written(value: unknown, indent?: number): string {
  const text = JSON.stringify(value, null, indent) as string | undefined;
  return text === undefined ? String(value) : text.replace(MARKED, "$1");
}

/** A value, or a text that is JSON, with indents; any other text as it is. */
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

export type Parsed = { readonly value: unknown; readonly error?: undefined } | { readonly error: string };

/** What was typed, or what is wrong with it and in which line. */
export function parseTyped(text: string): Parsed {
  if (text.trim() === "") return { error: "type a JSON value, such as {}" };
  try {
    return { value: parseExact(text) };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const position = /position (\d+)/.exec(message)?.[1];
    if (position === undefined) return { error: `not JSON: ${message}` };
    const before = text.slice(0, Number(position)).split("\n");
    return { error: `not JSON at line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}` };
  }
}
