// Repairs of envelopes that wait in a stream or in its dead letters: redrive, edit and resend, drop.

import { useState } from "preact/hooks";

import { written } from "../json.ts";
import { notify, report } from "../notices.ts";
import { fetchJson } from "../request.ts";
import { type Envelope, homeNameOf, isDeadLetters, type Peeked, type Redriven, redriven } from "../streams.ts";
import { plural } from "../format.ts";
import { Button } from "./button.tsx";
import { Confirm, EnvelopeForm, type Typed } from "./form.tsx";

interface RepairsProps {
  /** Envelopes of one stream, at least one. */
  readonly rows: readonly Peeked[];
  readonly onDone: () => void;
}

/** Buttons for these envelopes. The server redrives or drops all of them or none. */
export function Repairs({ rows, onDone }: RepairsProps) {
  const [shown, show] = useState<"edit" | "drop" | undefined>(undefined);
  const [first] = rows;
  if (first === undefined) return null;
  const { stream } = first;
  const body = { stream, ids: rows.map(({ env }) => env.id) };
  const many = rows.length > 1 ? ` ${rows.length}` : "";
  const redrive = (): Promise<void> =>
    report(async () => {
      notify(redriven(await fetchJson<Redriven>("/v1/redrive", { method: "POST", body })));
      onDone();
    });
  const drop = async (): Promise<void> => {
    await report(async () => {
      const { dropped } = await fetchJson<{ dropped: number }>("/v1/drop", { method: "POST", body });
      notify(`${plural(dropped, "envelope")} dropped from ${stream}.`);
      onDone();
    });
    show(undefined);
  };
  return (
    <>
      {isDeadLetters(stream) && <Button onPress={() => void redrive()}>Redrive{many}</Button>}
      {rows.length === 1 && <Button onPress={() => show("edit")}>Edit and resend</Button>}
      <Button kind="danger" onPress={() => show("drop")}>
        Drop{many}
      </Button>
      {shown === "edit" && <EditDialog row={first} onDone={onDone} onClose={() => show(undefined)} />}
      {shown === "drop" && (
        <Confirm title={`Drop ${plural(rows.length, "envelope")}`} word={stream} verb="Drop" onConfirm={drop} onClose={() => show(undefined)}>
          <p>
            Drop {rows.length === 1 ? <code>{first.env.id}</code> : plural(rows.length, "envelope")} from {stream}. You cannot undo this.
          </p>
        </Confirm>
      )}
    </>
  );
}

/** Sends an edited copy under a new id, then drops the original. In this order no failure loses the envelope. */
function EditDialog({ row, onDone, onClose }: { row: Peeked; onDone: () => void; onClose: () => void }) {
  const { env, stream } = row;
  const [id] = useState(() => `${env.id.slice(0, ID_MAX - 9)}-${crypto.getRandomValues(new Uint32Array(1))[0]?.toString(16)}`);
  const resend = async ({ to, kind, payload }: Typed): Promise<void> => {
    const envelope = { ...withoutReserved(env), id, ts: new Date().toISOString(), to, type: kind, payload, refs: [...(env.refs ?? []), env.id] };
    await fetchJson("/v1/enqueue", { method: "POST", body: { to, envelope } });
    notify(`Sent ${id} to ${to}.`);
    await report(async () => void (await fetchJson("/v1/drop", { method: "POST", body: { stream, ids: [env.id] } })));
    onDone();
  };
  return (
    <EnvelopeForm
      title={`Edit and resend ${env.id}`}
      verb="Resend"
      icon="send"
      to={homeNameOf(stream)}
      kind={env.type ?? ""}
      payload={written(env.payload, 2)}
      toHint="The stream that receives the edited envelope."
      onSubmit={resend}
      onClose={onClose}
    >
      <p class="note">
        The copy gets a new id and refers to this envelope. Once the server accepts the copy, this envelope is dropped from {stream}.
      </p>
    </EnvelopeForm>
  );
}

/** Characters of an id. */
const ID_MAX = 256;

/** Senders that only the server may name. */
const RESERVED = /^(system|pipeline)\//;

/** An envelope without what only the server may set: the header that says why it is a dead letter, and a reserved sender. */
function withoutReserved({ headers = {}, from, ...rest }: Envelope): Envelope {
  const kept = Object.entries(headers).filter(([name]) => name !== "x-courier");
  return {
    ...rest,
    ...(from !== undefined && !RESERVED.test(from) && { from }),
    ...(kept.length > 0 && { headers: Object.fromEntries(kept) }),
  };
}
