// Parses the text of `/metrics`. The page shows these values unchanged, so they equal those in Prometheus to the digit.

export interface Sample {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export type Scrape = ReadonlyMap<string, readonly Sample[]>;

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES: Readonly<Record<string, string>> = { n: "\n", "\\": "\\", '"': '"' };

export function parseExposition(text: string): Scrape {
  const scrape = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (found?.[1] === undefined || found[3] === undefined) continue;
    const sample = { labels: parseLabels(found[2]), value: parseValue(found[3]) };
    const known = scrape.get(found[1]);
    if (known === undefined) scrape.set(found[1], [sample]);
    else known.push(sample);
  }
  return scrape;
}

/** The value of the first sample with these labels; undefined if the server does not report it. */
export function valueOf(scrape: Scrape, name: string, labels: Readonly<Record<string, string>> = {}): number | undefined {
  const wanted = Object.entries(labels);
  return scrape.get(name)?.find((sample) => wanted.every(([key, value]) => sample.labels[key] === value))?.value;
}

/** The sum over all labels; undefined if the server does not report the metric. */
export function sumOf(scrape: Scrape, name: string): number | undefined {
  const samples = scrape.get(name);
  return samples?.reduce((sum, sample) => sum + sample.value, 0);
}

function parseLabels(text: string | undefined): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, key, value] of (text ?? "").matchAll(LABEL)) {
    if (key !== undefined && value !== undefined) {
      labels[key] = value.replace(/\\(.)/g, (_, letter: string) => ESCAPES[letter] ?? letter);
    }
  }
  return labels;
}

function parseValue(text: string): number {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}
