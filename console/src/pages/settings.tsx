// The settings that count now: the config, the policy of a stream, triggers with a dry run, schemas.

import { useState } from "preact/hooks";

import { Button, Command } from "../parts/button.tsx";
import { Code } from "../parts/code.tsx";
import { Choice, Field } from "../parts/field.tsx";
import { EnvelopeForm, type Typed } from "../parts/form.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { asFailure, type Failure, fetchJson, withQuery } from "../request.ts";
import { type Resource, useResource } from "../resource.ts";
import { written } from "../json.ts";
import { count, plural } from "../format.ts";

interface Settings {
  readonly source: string | null;
  readonly config: Readonly<Record<string, unknown>>;
  readonly policy: Readonly<Record<string, unknown>> | null;
}

/** How often settings are polled; they change with a reload of the config. */
const SLOW_MS = 5_000;

function useJson<T>(path: string): Resource<T> {
  return useResource(path, (stop) => fetchJson<T>(path, { signal: stop }), SLOW_MS);
}

export function SettingsPage() {
  const { data, failure } = useJson<Settings>("/v1/config");
  const settings = data.value;
  return (
    <div class="stack">
      <PageHead title="Settings" note={settings === undefined ? "Loading…" : (settings.source ?? "Defaults: the server has no config file.")} />
      <Refused failure={failure.value} />
      {settings !== undefined && <EffectiveConfig settings={settings} />}
      <StreamPolicy />
      <Triggers />
      <Schemas />
    </div>
  );
}

function EffectiveConfig({ settings: { config } }: { settings: Settings }) {
  const sections = Object.keys(config);
  const [section, choose] = useState(sections[0] ?? "");
  return (
    <Panel
      title="Effective config"
      note="defaults, file and environment merged; secrets masked"
      actions={<Choice label="Section" value={section} options={sections.map((name) => [name, name] as const)} onChange={choose} />}
    >
      <div class="stack">
        <Code value={config[section]} label={section} />
        <p class="note">Change the config file, then reload it:</p>
        <Command text="penstock config reload" />
      </div>
    </Panel>
  );
}

const POLICY: readonly Column<readonly [string, unknown]>[] = [
  { key: "name", title: "Setting", cell: ([name]) => <span class="mono">{name}</span>, sort: ([name]) => name },
  { key: "value", title: "Value", cell: ([, value]) => <span class="mono">{written(value)}</span> },
];

function StreamPolicy() {
  const [stream, setStream] = useState("");
  const [policy, show] = useState<Settings["policy"]>(null);
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const load = async (): Promise<void> => {
    try {
      show((await fetchJson<Settings>(withQuery("/v1/config", { stream }))).policy);
      fail(undefined);
    } catch (error) {
      fail(asFailure(error));
    }
  };
  return (
    <Panel title="Policy of a stream" note="keys and units as in a config file: times in milliseconds, sizes in bytes; 0 means no limit">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void load();
        }}
      >
        <Field label="Stream" value={stream} onInput={setStream} isRequired hint="The stream need not exist yet." />
        <div class="actions">
          <Button type="submit" isDisabled={stream === ""}>
            Show
          </Button>
        </div>
        <Refused failure={failure} />
        {policy !== null && <Table label="Policy" columns={POLICY} rows={Object.entries(policy)} keyOf={([name]) => name} />}
      </form>
    </Panel>
  );
}

interface Trigger {
  readonly id: string;
  readonly hook: string;
  readonly origin: "config" | "runtime";
  readonly state: "ready" | "resting" | "disabled";
  readonly rule: unknown;
  readonly counters: Readonly<Record<string, number>>;
}

/** Why a match did not fire, by the name of its counter. */
const HELD_BACK: Readonly<Record<string, string>> = {
  suppressed: "in the cooldown",
  looped: "caused by the trigger itself",
  hops: "too many triggers in a row",
  blocked: "paused after failures",
};
const PROBLEMS: Readonly<Record<string, string>> = {
  fail: "actions failed",
  warn: "placeholders without a value",
  duplicates: "envelopes that the stream already had",
  undone: "refused by the journal",
};

function reasons(counters: Trigger["counters"], words: Readonly<Record<string, string>>): string {
  const found = Object.entries(words).filter(([name]) => (counters[name] ?? 0) > 0);
  return found.map(([name, text]) => `${count(counters[name])} ${text}`).join(", ") || "–";
}

const TRIGGERS: readonly Column<Trigger>[] = [
  { key: "id", title: "Trigger", cell: ({ id }) => id, sort: ({ id }) => id },
  { key: "hook", title: "When", cell: ({ hook }) => hook.replace("on_", "on "), sort: ({ hook }) => hook },
  { key: "state", title: "State", cell: ({ state }) => <Badge tone={state === "ready" ? "good" : "warn"}>{state}</Badge>, sort: ({ state }) => state },
  { key: "run", title: "Fired", isNumber: true, cell: ({ counters }) => count(counters["run"]), sort: ({ counters }) => counters["run"] },
  { key: "sent", title: "Sent", isNumber: true, help: "envelopes that it sent", cell: ({ counters }) => count(counters["emitted"]), sort: ({ counters }) => counters["emitted"] },
  { key: "not", title: "Matched, did not fire", cell: ({ counters }) => reasons(counters, HELD_BACK), help: "matches that did not fire, by reason" },
  { key: "trouble", title: "Problems", cell: ({ counters }) => reasons(counters, PROBLEMS), help: "what went wrong after it fired" },
  { key: "origin", title: "From", cell: ({ origin }) => (origin === "config" ? "config file" : "set at run time"), sort: ({ origin }) => origin },
  { key: "rule", title: "Rule", cell: ({ rule }) => <span class="preview mono">{written(rule)}</span> },
];

function Triggers() {
  const { data, failure } = useJson<{ triggers: readonly Trigger[] }>("/v1/triggers");
  const [isTrying, setTrying] = useState(false);
  const rows = data.value?.triggers ?? [];
  return (
    <Panel title="Triggers" isFlush actions={rows.length > 0 && <Button onPress={() => setTrying(true)}>Dry run</Button>}>
      <Refused failure={failure.value} />
      <Table
        label="Triggers"
        columns={TRIGGERS}
        rows={rows}
        keyOf={({ id }) => id}
        empty={
          <Empty title={data.value === undefined ? "Loading…" : "No triggers"}>
            <p>
              A trigger acts on envelopes that match a rule, for example sends a copy. Add some under <code>triggers</code> in the config file.
            </p>
          </Empty>
        }
      />
      {isTrying && <DryRun onClose={() => setTrying(false)} />}
    </Panel>
  );
}

interface Trial {
  readonly id: string;
  readonly fits: boolean;
  readonly because?: readonly string[];
  readonly sends?: readonly unknown[];
}

/** Shows what the triggers would do with an envelope. Nothing is sent. */
function DryRun({ onClose }: { onClose: () => void }) {
  const [trials, show] = useState<readonly Trial[] | undefined>(undefined);
  const run = async ({ to, kind, payload }: Typed): Promise<void> => {
    const envelope = { id: "dry-run", ts: new Date().toISOString(), type: kind, payload };
    show((await fetchJson<{ triggers: readonly Trial[] }>("/v1/triggers/try", { method: "POST", body: { to, envelope } })).triggers);
  };
  return (
    <EnvelopeForm title="Try an envelope" verb="Try" closeVerb="Close" payloadHint="Any JSON value. Nothing is sent." onSubmit={run} onClose={onClose}>
      {trials !== undefined && (
        <ul class="reasons" aria-label="Result" role="status">
          {trials.map(({ id, fits, because = [], sends = [] }) => (
            <li key={id}>
              <Badge tone={fits ? "good" : "plain"}>{id}</Badge>
              <span>{fits ? `would fire and send ${plural(sends.length, "envelope")}` : `does not match: ${because.join("; ")}`}</span>
            </li>
          ))}
        </ul>
      )}
    </EnvelopeForm>
  );
}

interface Schema {
  readonly name: string;
  readonly versions: readonly string[];
}

const SCHEMAS: readonly Column<Schema>[] = [
  { key: "name", title: "Schema", cell: ({ name }) => <span class="mono">{name}</span>, sort: ({ name }) => name },
  { key: "versions", title: "Versions", cell: ({ versions }) => versions.join(", ") },
];

function Schemas() {
  const { data, failure } = useJson<{ schemas: readonly Schema[] }>("/v1/schemas");
  return (
    <Panel title="Schemas" isFlush>
      <Refused failure={failure.value} />
      <Table
        label="Schemas"
        columns={SCHEMAS}
        rows={data.value?.schemas ?? []}
        keyOf={({ name }) => name}
        empty={
          <Empty title={data.value === undefined ? "Loading…" : "No schemas"}>
            <p>
              Set <code>schemas.dir</code> to a directory of JSON Schemas.
            </p>
          </Empty>
        }
      />
    </Panel>
  );
}
