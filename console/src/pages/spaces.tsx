// Spaces: participants, open streams, the stream graph, and deliveries saved by targeting.

import { useMemo, useRef, useState } from "preact/hooks";

import { sorted } from "../order.ts";
import { Button, Command } from "../parts/button.tsx";
import { Choice, Filter, Tabs } from "../parts/field.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { navigate } from "../router.ts";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { InviteDialog, KickDialog, SendDialog } from "../spaces/dialogs.tsx";
import { Graph } from "../spaces/graph.tsx";
import { capabilityText, isTargeted, type Measured, Measuring, type Participant, saving, type Space, type Stream, streamTitle, type Survey } from "../spaces/survey.ts";
import { bytes, count, plural, rate } from "../format.ts";

/** Rows shown in a table; use the filter to find others. */
const ROWS_MAX = 200;
/** Up to this many spaces are shown as tabs, more as a drop-down list. */
const TABS_MAX = 6;

export function SpacesPage({ rest }: { rest: readonly string[] }) {
  const { data, failure } = useResource<Survey>("spaces", (stop) => fetchJson<Survey>("/v1/spaces", { signal: stop }));
  const measuring = useRef(new Measuring());
  const survey = data.value;
  const measured = useMemo(() => survey && measuring.current.take(performance.now() / 1000, survey), [survey]);
  if (measured === undefined || survey === undefined || survey.spaces.length === 0) {
    return (
      <div class="stack">
        <PageHead title="Spaces" />
        {failure.value !== undefined && failure.value.status !== 404 && <Refused failure={failure.value} />}
        {(survey !== undefined || failure.value?.status === 404) && <NoSpaces />}
      </div>
    );
  }
  const space = survey.spaces.find(({ id }) => id === rest[0]) ?? survey.spaces[0];
  return space === undefined ? <NoSpaces /> : <SpaceView space={space} measured={measured} />;
}

function NoSpaces() {
  return (
    <Panel title="No spaces" isFlush>
      <Empty title="No space is configured">
        <p>In a space, people, agents and programs exchange envelopes and streams. Add one to the config and start the server with it:</p>
        <Command text={'spaces: [{space: {id: workshop}, participants: {ada: {tokens: ["ada-token"], capabilities: [{kind: "*"}]}}}]'} />
        <Command text="penstock up --config config.yaml" />
      </Empty>
    </Panel>
  );
}

function SpaceView({ space, measured }: { space: Space; measured: Measured }) {
  const [act, setAct] = useState<"send" | "invite" | undefined>(undefined);
  const [kicked, kick] = useState<string | undefined>(undefined);
  const close = (): void => setAct(undefined);
  const present = space.participants.filter(({ connected }) => connected).length;
  const { counts } = space;
  return (
    <div class="stack">
      <PageHead
        title={space.name !== null && space.name !== "" ? space.name : space.id}
        note={
          <>
            Space <span class="mono">{space.id}</span>
          </>
        }
        actions={
          <>
            <SpaceChoice spaces={measured.spaces} current={space} />
            <Button icon="send" onPress={() => setAct("send")}>
              Send
            </Button>
            <Button onPress={() => setAct("invite")}>Invite</Button>
          </>
        }
      />
      <Figures>
        <Figure label="Connected" value={count(present)} unit={`of ${count(space.participants.length)}`} />
        <Figure label="Open streams" value={count(space.streams.length)} note={`${count(space.streams.filter(isTargeted).length)} targeted`} />
        <Figure label="Frames/s" value={rate(measured.rate(space, "frames"))} note={`${count(counts["frames"])} total`} />
        <Figure label="Deliveries/s" value={rate(measured.rate(space, "deliveries"))} note={`${count(counts["deliveries"])} total`} />
        <Figure label="Envelopes" value={count(counts["envelopes"])} note={`${count(counts["refused"])} rejected`} />
        <Figure
          label="Frames dropped"
          value={count(counts["dropped"])}
          note={`${plural(counts["slow_cut"] ?? 0, "slow reader")} disconnected`}
          tone={(counts["dropped"] ?? 0) > 0 ? "warn" : "plain"}
        />
      </Figures>
      <div class="two">
        <Panel title="Stream graph">
          <Graph space={space} measured={measured} />
        </Panel>
        <div class="stack">
          <SavingPanel space={space} measured={measured} />
          <StreamsPanel space={space} measured={measured} />
        </div>
      </div>
      <ParticipantsPanel space={space} onKick={kick} />
      {act === "send" && <SendDialog space={space} onClose={close} />}
      {act === "invite" && <InviteDialog space={space} onClose={close} />}
      {kicked !== undefined && <KickDialog space={space} participant={kicked} onClose={() => kick(undefined)} />}
    </div>
  );
}

function SpaceChoice({ spaces, current }: { spaces: readonly Space[]; current: Space }) {
  if (spaces.length < 2) return null;
  const options = spaces.map(({ id }) => [id, id] as const);
  const choose = (id: string): void => navigate(["spaces", id]);
  return spaces.length <= TABS_MAX ? (
    <Tabs label="Space" value={current.id} options={options} onChange={choose} />
  ) : (
    <Choice label="Space" value={current.id} options={options} onChange={choose} />
  );
}

function SavingPanel({ space, measured }: { space: Space; measured: Measured }) {
  const { deliveries, broadcast, part } = saving(space);
  const now = measured.rate(space, "deliveries");
  const without = measured.rate(space, "broadcast");
  return (
    <Panel title="Saved by targeting" note="since the server started">
      {broadcast === 0 ? (
        <p class="note">No frames yet. A targeted stream is delivered only to its targets.</p>
      ) : (
        <div class="saving">
          <p>
            <b class="saved">{Math.floor(part * 1000) / 10} %</b> fewer deliveries: {count(deliveries)} instead of {count(broadcast)}
            {now !== undefined && without !== undefined && `, now ${rate(now)}/s instead of ${rate(without)}/s`}
          </p>
          <div class="bars" aria-hidden="true">
            <span>delivered</span>
            <span class="bar">
              <i class="taken" style={{ width: `${(100 * deliveries) / broadcast}%` }} />
            </span>
            <span>without targets</span>
            <span class="bar">
              <i class="spared" style={{ width: "100%" }} />
            </span>
          </div>
        </div>
      )}
    </Panel>
  );
}

function StreamsPanel({ space, measured }: { space: Space; measured: Measured }) {
  const columns: readonly Column<Stream>[] = [
    {
      key: "stream",
      title: "Stream",
      cell: (stream) => (
        <span class="stream-name" title={stream.stream_id}>
          {streamTitle(stream)}
        </span>
      ),
      sort: streamTitle,
    },
    { key: "owner", title: "From", cell: (stream) => stream.owner, sort: (stream) => stream.owner },
    { key: "target", title: "To", cell: (stream) => <Target stream={stream} />, sort: (stream) => stream.target?.join(" ") ?? "" },
    {
      key: "receivers",
      title: "Receivers",
      cell: (stream) => <span title={stream.receivers.join(", ")}>{count(stream.receivers.length)}</span>,
      sort: (stream) => stream.receivers.length,
      isNumber: true,
      help: "Participants that receive its frames now",
    },
    { key: "rate", title: "Frames/s", cell: (stream) => rate(measured.streamRate(space, stream, "frames")), sort: (stream) => measured.streamRate(space, stream, "frames"), isNumber: true },
    { key: "frames", title: "Frames", cell: (stream) => count(stream.frames), sort: (stream) => stream.frames, isNumber: true },
    { key: "byteRate", title: "Bytes/s", cell: (stream) => bytes(rounded(measured.streamRate(space, stream, "bytes"))), sort: (stream) => measured.streamRate(space, stream, "bytes"), isNumber: true },
    { key: "bytes", title: "Size", cell: (stream) => bytes(stream.bytes), sort: (stream) => stream.bytes, isNumber: true },
    { key: "dropped", title: "Dropped", cell: (stream) => (stream.dropped > 0 ? <Badge tone="warn">{count(stream.dropped)}</Badge> : "0"), sort: (stream) => stream.dropped, isNumber: true },
  ];
  const shown = space.streams.slice(0, ROWS_MAX);
  return (
    <Panel title="Streams" note={plural(space.streams.length, "open stream") + (shown.length < space.streams.length ? `, the first ${ROWS_MAX} shown` : "")} isFlush>
      <div class="tall">
        <Table
          label="Open streams"
          columns={columns}
          rows={shown}
          keyOf={(stream) => stream.stream_id}
          empty={
            <Empty title="No open streams">
              <p>A participant opens a stream with a request, for all participants or for its targets:</p>
              <code class="mono">{'{"kind": "stream/request", "payload": {"direction": "upload", "target": ["collector"]}}'}</code>
            </Empty>
          }
        />
      </div>
    </Panel>
  );
}

function Target({ stream }: { stream: Stream }) {
  if (!isTargeted(stream)) return <Badge>all</Badge>;
  const targets = stream.target ?? [];
  return <span title={targets.join(", ")}>{targets.length <= 2 ? targets.join(", ") : `${targets[0]} and ${plural(targets.length - 1, "other")}`}</span>;
}

function ParticipantsPanel({ space, onKick }: { space: Space; onKick: (id: string) => void }) {
  const [sought, seek] = useState("");
  const found = sorted(space.participants, ({ id }) => id, false).filter(({ id }) => id.toLowerCase().includes(sought.toLowerCase()));
  const shown = found.slice(0, ROWS_MAX);
  const notes = [
    shown.length < found.length ? `the first ${ROWS_MAX} of ${count(found.length)}` : "",
    space.kicked.length > 0 ? `kicked: ${space.kicked.slice(0, 10).join(", ")}${space.kicked.length > 10 ? "…" : ""}` : "",
  ].filter((part) => part !== "");
  const owned = new Map<string, number>();
  for (const { owner } of space.streams) owned.set(owner, (owned.get(owner) ?? 0) + 1);
  const columns: readonly Column<Participant>[] = [
    {
      key: "id",
      title: "Participant",
      cell: ({ id, as }) => (
        <>
          {id}
          {as !== id && <span class="note"> as {as}</span>}
        </>
      ),
      sort: ({ id }) => id,
    },
    {
      key: "present",
      title: "Status",
      cell: ({ connected }) => (connected ? <Badge tone="good">connected</Badge> : <Badge>offline</Badge>),
      sort: ({ connected }) => (connected ? 0 : 1),
    },
    { key: "type", title: "Type", cell: ({ type, id }) => [type ?? "", space.invited.includes(id) ? "invited" : ""].filter(Boolean).join(", ") || "–", sort: ({ type }) => type },
    { key: "streams", title: "Streams", cell: ({ id }) => count(owned.get(id) ?? 0), sort: ({ id }) => owned.get(id) ?? 0, isNumber: true },
    { key: "capabilities", title: "May send", cell: ({ capabilities }) => <Capabilities texts={capabilities.map(capabilityText)} /> },
    {
      key: "kick",
      title: "",
      cell: ({ id }) => (
        <Button kind="quiet" label={`Kick ${id}`} onPress={() => onKick(id)}>
          Kick
        </Button>
      ),
    },
  ];
  return (
    <Panel
      title="Participants"
      note={notes.join("; ")}
      actions={<Filter label="Filter participants" placeholder="Filter participants" value={sought} onInput={seek} isMain />}
      isFlush
    >
      <div class="tall">
        <Table
          label="Participants"
          columns={columns}
          rows={shown}
          keyOf={({ id }) => id}
          order={{ key: "present", isFalling: false }}
          empty={<Empty title={sought === "" ? "No participants" : "No participant matches the filter"} />}
        />
      </div>
    </Panel>
  );
}

function Capabilities({ texts }: { texts: readonly string[] }) {
  if (texts.length === 0) return <span class="note">none</span>;
  return (
    <span class="capabilities" title={texts.join("\n")}>
      {texts.slice(0, 6).map((text) => (
        <span key={text} class="badge mono">
          {text}
        </span>
      ))}
      {texts.length > 6 && <span class="note">and {plural(texts.length - 6, "other")}</span>}
    </span>
  );
}

function rounded(value: number | undefined): number | undefined {
  return value === undefined ? undefined : Math.round(value);
}
