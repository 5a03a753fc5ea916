// One stream: figures, delivery status, consumers, leases and contents.

import { useState } from "preact/hooks";

import { type Range, RANGES } from "../history.ts";
import { notify, report } from "../notices.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/form.tsx";
import { Tabs } from "../parts/field.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Empty, PageHead, Refused } from "../parts/panel.tsx";
import { Contents } from "../parts/contents.tsx";
import { Consumers, DeliveryStatus, Leases } from "../parts/flow.tsx";
import { Plot } from "../parts/plot.tsx";
import { Prose } from "../parts/prose.tsx";
import { SendDialog } from "../parts/send.tsx";
import { href } from "../router.ts";
import { fetchJson } from "../request.ts";
import { deadNameOf, isDeadLetters, type Redriven, redriven, type StreamFigures, useStreams } from "../streams.ts";
import { useHistory } from "../telemetry.ts";
import { about, bytes, count, plural, rate, span } from "../format.ts";

export function QueuePage({ stream }: { stream: string }) {
  const { data, failure, refresh } = useStreams();
  const streams = data.value ?? [];
  const figures = streams.find(({ id }) => id === stream);
  const dead = streams.find(({ id }) => id === deadNameOf(stream))?.stats.depth ?? 0;
  return (
    <div class="stack">
      <PageHead
        title={stream}
        back={{ href: href(["queues"]), title: "Queues" }}
        actions={<Verbs stream={stream} streams={streams.map(({ id }) => id)} dead={dead} waiting={waitingIn(figures)} refresh={refresh} />}
      />
      <Refused failure={failure.value} />
      {data.value !== undefined && figures === undefined && (
        <>
          <Empty title="This stream is not active">
            <p>
              It has received no messages, or was unloaded after being empty and idle. Sending a message activates it.
              {dead > 0 && " Its dead letters are below."}
            </p>
          </Empty>
          {dead > 0 && <Contents stream={deadNameOf(stream)} onChange={refresh} />}
        </>
      )}
      {figures !== undefined && (
        <>
          <Numbers figures={figures} dead={dead} />
          <div class="two">
            <DeliveryStatus stream={stream} />
            <Consumers stream={stream} />
          </div>
          <Leases stream={stream} />
          <Contents stream={stream} onChange={refresh} />
          <Curves stream={stream} />
        </>
      )}
    </div>
  );
}

function Numbers({ figures: { stats, q, id }, dead }: { figures: StreamFigures; dead: number }) {
  return (
    <Figures columns="four">
      <Figure label="Ready" value={count(stats.depth)} metric="q.depth" note={stats.oldestMs > 0 ? `${bytes(stats.bytes)}, oldest ${span(stats.oldestMs)}` : bytes(stats.bytes)} />
      <Figure label="In flight" value={count(stats.inflight)} metric="q.if" note="leased to consumers" />
      <Figure label="Delayed" value={count(stats.delayed)} metric="q.delayed" note="not due yet" />
      {isDeadLetters(id) ? (
        <Figure label="Redriven" value={count(q["q.moved"])} metric="q.moved" />
      ) : (
        <Figure label="Dead letters" value={count(dead)} tone={dead > 0 ? "warn" : "plain"} note={`${count(q["q.dead"])} ever`} />
      )}
      <Figure label="Accepted" value={count(q["q.in"])} metric="q.in" note={`${rate(stats.rateIn)}/s`} />
      <Figure label="Delivered" value={count(q["q.out"])} metric="q.out" note={`${rate(stats.rateOut)}/s`} />
      <Figure label="Acknowledged" value={count(q["q.ack"])} metric="q.ack" note={`${count(q["q.nack"])} nacked, ${count(q["q.timeout"])} timed out`} />
      <Figure label="Wait p95" value={about(stats.latP95)} note={`p50 ${about(stats.latP50)}, p99 ${about(stats.latP99)}`} />
    </Figures>
  );
}

/** The history of the stream: sampled by the server, and from the lake before that. */
function Curves({ stream }: { stream: string }) {
  const [range, setRange] = useState<Range>("600");
  const { tracks, failure, note } = useHistory(Number(range), stream);
  return (
    <section class="stack" aria-label="History">
      <div class="row">
        <Tabs label="Time range" value={range} options={RANGES} onChange={setRange} />
        {note !== "" && (
          <p class="note">
            <Prose text={note} />
          </p>
        )}
      </div>
      <Refused failure={failure} />
      <div class="two">
        <Plot
          title="Queue depth"
          track={tracks(["penstock_q_depth", "penstock_q_if", "penstock_q_delayed"])}
          series={[{ label: "ready" }, { label: "in flight" }, { label: "delayed" }]}
          format={count}
        />
        <Plot
          title="Envelopes per second"
          track={tracks(["penstock_q_in_total", "penstock_q_out_total", "penstock_q_ack_total"])}
          series={[{ label: "in" }, { label: "out" }, { label: "acknowledged" }]}
          format={rate}
        />
      </div>
    </section>
  );
}

interface VerbsProps {
  readonly stream: string;
  readonly streams: readonly string[];
  readonly dead: number;
  readonly waiting: number;
  readonly refresh: () => void;
}

function Verbs({ stream, streams, dead, waiting, refresh }: VerbsProps) {
  const [shown, show] = useState<"send" | "redrive" | "purge" | undefined>(undefined);
  const close = (): void => {
    show(undefined);
    refresh();
  };
  const redrive = async (): Promise<void> => {
    await report(async () => {
      const body = { stream: deadNameOf(stream), max: Math.min(100_000, Math.max(1, dead)) };
      notify(redriven(await fetchJson<Redriven>("/v1/redrive", { method: "POST", body })));
    });
    close();
  };
  const purge = async (): Promise<void> => {
    await report(async () => {
      const { purged } = await fetchJson<{ purged: number }>("/v1/purge", { method: "POST", body: { stream } });
      notify(`${plural(purged, "envelope")} dropped from ${stream}.`);
    });
    close();
  };
  return (
    <>
      <a class="button" href={href(["tail"], { channel: stream })}>
        Live tail
      </a>
      {dead > 0 && <Button onPress={() => show("redrive")}>Redrive</Button>}
      <Button kind="danger" onPress={() => show("purge")}>
        Purge
      </Button>
      <Button kind="main" icon="send" onPress={() => show("send")}>
        Send
      </Button>
      {shown === "send" && <SendDialog to={stream} streams={streams} onClose={close} />}
      {shown === "redrive" && (
        <Confirm title="Redrive dead letters" verb="Redrive" onConfirm={redrive} onClose={close}>
          <p>
            Send {plural(dead, "dead letter")} of {stream} back to the original streams for redelivery. Fix the cause of the failures first.
          </p>
        </Confirm>
      )}
      {shown === "purge" && (
        <Confirm title={`Purge ${stream}`} word={stream} verb="Purge" onConfirm={purge} onClose={close}>
          <p>
            Drop {plural(waiting, "envelope")} that are ready or delayed in this stream. Envelopes in flight stay. You cannot undo this.
          </p>
        </Confirm>
      )}
    </>
  );
}

function waitingIn(figures: StreamFigures | undefined): number {
  return (figures?.stats.depth ?? 0) + (figures?.stats.delayed ?? 0);
}
