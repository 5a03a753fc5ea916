// The operator's dialogs for a space: send, invite, kick. The server sends envelopes as `operator`.

import { useState } from "preact/hooks";

import { parseTyped } from "../json.ts";
import { notifyFailure, notify } from "../notices.ts";
import { Command } from "../parts/button.tsx";
import { Confirm, FormDialog, TokenDialog } from "../parts/form.tsx";
import { Field } from "../parts/field.tsx";
import { asFailure, fetchJson } from "../request.ts";
import type { Space } from "./survey.ts";

const KINDS = ["chat", "chat/acknowledge", "mcp/request", "mcp/proposal", "participant/request-status", "stream/request"] as const;

interface DialogProps {
  readonly space: Space;
  readonly onClose: () => void;
}

function path(space: Space, action: string): string {
  return `/v1/spaces/${encodeURIComponent(space.id)}/${action}`;
}

/** The names in a field, separated by commas or spaces. */
export function names(text: string): string[] {
  return text.split(/[\s,]+/).filter((name) => name !== "");
}

export function SendDialog({ space, onClose }: DialogProps) {
  const [kind, setKind] = useState("chat");
  const [to, setTo] = useState("");
  const [payload, setPayload] = useState('{"text": "hello", "format": "plain"}');
  const typed = parseTyped(payload);
  const send = async (): Promise<void> => {
    if (typed.error !== undefined) return;
    const body = { kind, payload: typed.value, ...(names(to).length > 0 ? { to: names(to) } : {}) };
    const { id } = await fetchJson<{ id: string }>(path(space, "messages"), { method: "POST", body });
    notify(`Sent ${kind} as ${id}.`);
    onClose();
  };
  return (
    <FormDialog title={`Send to ${space.id}`} verb="Send" icon="send" canSubmit={kind !== "" && typed.error === undefined} onSubmit={send} onClose={onClose}>
      <Field label="Kind" value={kind} onInput={setKind} options={KINDS} isRequired />
      <Field
        label="To"
        value={to}
        onInput={setTo}
        placeholder="all"
        hint="Participants, separated by commas. All participants receive every envelope; this field names the addressees."
        options={space.participants.map(({ id }) => id)}
      />
      <Field label="Payload" value={payload} onInput={setPayload} lines={6} error={typed.error} />
    </FormDialog>
  );
}

export function InviteDialog({ space, onClose }: DialogProps) {
  const [participant, setParticipant] = useState("");
  const [capabilities, setCapabilities] = useState("chat");
  const [token, setToken] = useState<string | undefined>(undefined);
  const invite = async (): Promise<void> => {
    const body = { participant, capabilities: names(capabilities).map((kind) => ({ kind })) };
    setToken((await fetchJson<{ token: string }>(path(space, "invite"), { method: "POST", body })).token);
  };
  if (token !== undefined) {
    return (
      <TokenDialog name={participant} token={token} onClose={onClose}>
        <p class="note">Join the space with it:</p>
        <Command
          text={`curl -s '${window.location.origin}/participants/${encodeURIComponent(participant)}/messages?space=${encodeURIComponent(space.id)}' -H 'Authorization: Bearer TOKEN'`}
        />
      </TokenDialog>
    );
  }
  return (
    <FormDialog title={`Invite a participant to ${space.id}`} verb="Invite" canSubmit={participant.trim() !== ""} onSubmit={invite} onClose={onClose}>
      <Field label="Participant" value={participant} onInput={setParticipant} isRequired hint="The id of the participant in the space." />
      <Field
        label="Capabilities"
        value={capabilities}
        onInput={setCapabilities}
        options={["chat", "chat stream/*", "*"]}
        hint="Kinds of envelopes that it may send, separated by spaces: chat, stream/*, mcp/*, or * for all."
      />
    </FormDialog>
  );
}

export function KickDialog({ space, participant, onClose }: DialogProps & { readonly participant: string }) {
  const [reason, setReason] = useState("");
  const kick = async (): Promise<void> => {
    try {
      const body = { participant, ...(reason === "" ? {} : { reason }) };
      await fetchJson<unknown>(path(space, "kick"), { method: "POST", body });
      notify(`Kicked ${participant} from ${space.id}.`);
    } catch (error) {
      notifyFailure(asFailure(error));
    }
    onClose();
  };
  return (
    <Confirm title={`Kick ${participant}`} word={participant} verb="Kick" onConfirm={kick} onClose={onClose}>
      <p>
        The server closes its connections to {space.id}, ends its streams, and rejects its token until you invite it again.
      </p>
      <Field label="Reason" value={reason} onInput={setReason} hint="Visible to all participants." />
    </Confirm>
  );
}
