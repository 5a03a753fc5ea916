// The state of the server: its services, what needs attention, and the traffic over time.

import { useState } from "preact/hooks";

import { type Condition, conditionsOf, HOT, type Service, servicesOf, type Health } from "../conditions.ts";
import { sumOf, valueOf } from "../exposition.ts";
import { type Range, RANGES, READY } from "../history.ts";
import { Command } from "../parts/button.tsx";
import { Tabs } from "../parts/field.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused, type Tone } from "../parts/panel.tsx";
import { Plot } from "../parts/plot.tsx";
import { Prose } from "../parts/prose.tsx";
import { Resources } from "../parts/resources.tsx";
import { href } from "../router.ts";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { session } from "../session.ts";
import { useExplanation, useStreams } from "../streams.ts";
import { metricsFailure, type Reading, reading, readyOf, useHistory } from "../telemetry.ts";
import { about, ago, count, rate, span } from "../format.ts";

export function OverviewPage() {
  const [range, setRange] = useState<Range>("600");
  const { data: health } = useResource("/health", (stop) => fetchJson<Health>("/health", { signal: stop, accepts: 503 }), 3_000);
  const latest = reading.value;
  const uptime = latest === undefined ? undefined : valueOf(latest.scrape, "penstock_uptime_seconds");
  return (
    <div class="stack overview">
      <PageHead
        title="Overview"
        note={uptime === undefined ? "Loading…" : `uptime ${span(Math.floor(uptime) * 1000)}`}
        actions={<Tabs label="Time range" value={range} options={RANGES} onChange={setRange} />}
      />
      <Refused failure={metricsFailure.value?.isUnreachable ? undefined : metricsFailure.value} />
      {latest !== undefined && (
        <>
          <div class="two top">
            <Services latest={latest} health={health.value} />
            <Attention latest={latest} health={health.value} />
          </div>
          <Numbers latest={latest} />
          {valueOf(latest.scrape, "penstock_q_in_total") === 0 && <FirstSteps />}
          <Curves latest={latest} seconds={Number(range)} />
          <Resources />
        </>
      )}
    </div>
  );
}

interface Alert {
  readonly id: string;
  readonly rule: string;
  readonly severity: string;
  readonly subject: string;
  readonly state: "firing" | "resolved";
  readonly message: string;
  readonly fired_at: string;
}

function Attention({ latest, health }: { latest: Reading; health: Health | undefined }) {
  const conditions = conditionsOf(latest.scrape, latest.minute, health);
  // A server without a pipeline has no alerts and responds with 404, which is not an error.
  const { data } = useResource("/v1/alerts", (stop) => fetchJson<{ alerts: readonly Alert[] }>("/v1/alerts", { signal: stop }), 5_000);
  const firing = (data.value?.alerts ?? []).filter(({ state }) => state === "firing");
  const total = conditions.length + firing.length;
  return (
    <Panel title="Needs attention" actions={<Badge tone={total === 0 ? "good" : "warn"}>{total === 0 ? "healthy" : count(total)}</Badge>}>
      <div role="status">
        {total === 0 ? (
          <p class="note">No errors, halts or full streams.</p>
        ) : (
          <ul class="alerts">
            {conditions.map((condition) =>
              condition.key === HOT ? <HotLine key={HOT} condition={condition} /> : <ConditionLine key={condition.key} condition={condition} />,
            )}
            {firing.map(({ id, severity, rule, subject, message, fired_at }) => (
              <li key={id}>
                <Badge tone={severity === "critical" ? "bad" : "warn"}>{severity}</Badge>
                <div>
                  <p>
                    <Prose text={message} />
                  </p>
                  <p class="note">
                    {rule} on {subject}, fired {ago(fired_at)}
                  </p>
                </div>
              </li>
            ))}
          </ul>
        )}
      </div>
    </Panel>
  );
}

function ConditionLine({ condition: { severity, text, hint, path } }: { condition: Condition }) {
  return (
    <li>
      <Badge tone={severity === "critical" ? "bad" : "warn"}>{severity}</Badge>
      <div>
        <p>
          {path.length > 0 ? (
            <a href={href(path)}>
              <Prose text={text} />
            </a>
          ) : (
            <Prose text={text} />
          )}
          .
        </p>
        <p class="note">
          <Prose text={hint} />
        </p>
      </div>
    </li>
  );
}

/** The line about envelopes that fail again and again, with the stream and the id of the first. */
function HotLine({ condition }: { condition: Condition }) {
  const { data } = useStreams();
  const stream = data.value?.find(({ stats }) => (stats.hot ?? 0) > 0)?.id;
  return stream === undefined ? <ConditionLine condition={condition} /> : <HotStream key={stream} stream={stream} condition={condition} />;
}

function HotStream({ stream, condition }: { stream: string; condition: Condition }) {
  const { data } = useExplanation(stream);
  const reason = data.value?.reasons.find(({ code }) => code === HOT);
  if (reason === undefined) return <ConditionLine condition={condition} />;
  const [id] = reason.ids ?? [];
  return <ConditionLine condition={{ ...condition, text: `${condition.text}: ${id} in ${stream}`, hint: reason.message, path: ["queues", stream] }} />;
}

const SERVICE_TONES: Readonly<Record<Service["state"], Tone>> = { up: "good", down: "bad", off: "plain", starting: "accent", degraded: "warn" };
const SERVICE_PATHS: Readonly<Record<string, string>> = { Queues: "queues", Spaces: "spaces", "Token streams": "tokens", Pipeline: "pipeline" };

function Services({ latest, health }: { latest: Reading; health: Health | undefined }) {
  const spaces = session.value.state === "in" ? session.value.who.spaces.length : 0;
  return (
    <ul class="services" aria-label="Services">
      {servicesOf(latest.scrape, spaces, health).map(({ name, state, detail }) => (
        <li key={name}>
          <p>
            <a href={href([SERVICE_PATHS[name] ?? ""])}>{name}</a> <Badge tone={SERVICE_TONES[state]}>{state}</Badge>
          </p>
          <p class="note">{detail}</p>
        </li>
      ))}
    </ul>
  );
}

/** Twelve figures, so that each row is full at every width. */
function Numbers({ latest: { scrape, rates } }: { latest: Reading }) {
  const figure = (label: string, metric: string, note?: string) => (
    <Figure label={label} value={count(sumOf(scrape, metric))} metric={metric} note={scrape.has(metric) ? note : "off"} />
  );
  const counter = (label: string, metric: string) => figure(label, metric, `${rate(rates.get(metric))}/s`);
  const wait = (share: string) => about(valueOf(scrape, "penstock_q_lat_ms", { quantile: share }));
  const dead = sumOf(scrape, "penstock_dead_letters") ?? 0;
  return (
    <Figures columns="six">
      {counter("Accepted", "penstock_q_in_total")}
      {counter("Delivered", "penstock_q_out_total")}
      {counter("Acknowledged", "penstock_q_ack_total")}
      <Figure label="Ready" value={count(readyOf(scrape))} metric="penstock_q_depth - penstock_dead_letters" note="without dead letters" />
      {figure("In flight", "penstock_q_if", "leased to consumers")}
      {figure("Delayed", "penstock_q_delayed", "not due yet")}
      <Figure
        label="Dead letters now"
        value={count(dead)}
        metric="penstock_dead_letters"
        tone={dead > 0 ? "warn" : "plain"}
        note={
          <a href={href(["dead"])}>
            <span data-metric="penstock_q_dead_total">{count(sumOf(scrape, "penstock_q_dead_total"))}</span> ever
          </a>
        }
      />
      <Figure label="Wait p95" value={wait("0.95")} metric={'penstock_q_lat_ms{quantile="0.95"}'} note={`p50 ${wait("0.5")}, p99 ${wait("0.99")}`} />
      {counter("Space envelopes", "penstock_space_envelopes_total")}
      {counter("Space frames", "penstock_space_frames_total")}
      {counter("Relayed", "penstock_relay_messages_total")}
      {figure("Pipeline lag", "penstock_pipeline_lag_rows", "rows")}
    </Figures>
  );
}

function FirstSteps() {
  return (
    <Panel title="Getting started">
      <Empty title="No messages yet">
        <p>Send a message to an agent. It appears here, in the live tail and in the agent's inbox:</p>
        <Command text={`curl ${window.location.origin}/v1/send -d '{"to": "sam", "type": "hello", "payload": {"text": "Good morning"}}'`} />
        <p>Receive and acknowledge it as sam:</p>
        <Command text="penstock inbox --as sam --ack" />
        <p>Or start the server with sample traffic:</p>
        <Command text="penstock up --demo" />
      </Empty>
    </Panel>
  );
}

/** The server's own history, so that the plots are full when the page opens. */
function Curves({ latest: { scrape }, seconds }: { latest: Reading; seconds: number }) {
  const { tracks, failure, note } = useHistory(seconds);
  return (
    <>
      <Refused failure={failure} />
      {note !== "" && (
        <p class="note" role="note">
          <Prose text={note} />
        </p>
      )}
      <div class="grid plots">
        {PLOTS.filter(({ needs }) => needs === undefined || scrape.has(needs)).map(({ title, metrics, labels, format }) => (
          <Plot key={title} title={title} track={tracks(metrics)} series={labels.map((label) => ({ label }))} format={format} />
        ))}
      </div>
    </>
  );
}

const WAITS = ["0.5", "0.95", "0.99"].map((share) => `penstock_q_lat_ms{quantile="${share}"}`);

interface PlotEntry {
  readonly title: string;
  readonly metrics: readonly string[];
  readonly labels: readonly string[];
  readonly format: (value: number | null | undefined) => string;
  /** A metric that the server reports only if the plot makes sense. */
  readonly needs?: string;
}

const PLOTS: readonly PlotEntry[] = [
  { title: "Envelopes per second", metrics: ["penstock_q_in_total", "penstock_q_out_total", "penstock_q_ack_total"], labels: ["in", "out", "acknowledged"], format: rate },
  { title: "Wait time", metrics: WAITS, labels: ["p50", "p95", "p99"], format: span },
  { title: "Queue depth", metrics: [READY, "penstock_q_if", "penstock_q_delayed", "penstock_dead_letters"], labels: ["ready", "in flight", "delayed", "dead letters"], format: count },
  {
    title: "Space traffic per second",
    metrics: ["penstock_space_frames_total", "penstock_space_deliveries_total", "penstock_space_envelopes_total"],
    labels: ["frames", "deliveries", "envelopes"],
    format: rate,
    needs: "penstock_space_frames_total",
  },
  {
    title: "Relay messages per second",
    metrics: ["penstock_relay_messages_total", "penstock_relay_forwarded_total"],
    labels: ["received", "forwarded"],
    format: rate,
    needs: "penstock_relay_messages_total",
  },
  { title: "Pipeline lag", metrics: ["penstock_pipeline_lag_rows"], labels: ["rows behind"], format: count, needs: "penstock_pipeline_lag_rows" },
];
