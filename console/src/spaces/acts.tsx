// What the operator does in a space: send, invite, kick. The server sends in the name of `operator`.

import { useState } from "preact/hooks";

import { parseTyped } from "../json.ts";
import { complain, notify } from "../notices.ts";
import { Button, Command, CopyButton } from "../parts/button.tsx";
import { Confirm, Dialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Refused } from "../parts/panel.tsx";
import { asFailure, ask, type Failure } from "../request.ts";
import type { Space } from "./survey.ts";

const KINDS = ["chat", "chat/acknowledge", "mcp/request", "mcp/proposal", "participant/request-status", "stream/request"] as const;

interface ActProps {
  readonly space: Space;
  readonly onClose: () => void;
}

function path(space: Space, act: string): string {
  return `/v1/spaces/${encodeURIComponent(space.id)}/${act}`;
}

/** Names in a field, apart by commas or blanks. */
export function names(text: string): string[] {
  return text.split(/[\s,]+/).filter((name) => name !== "");
}

export function SendDialog({ space, onClose }: ActProps) {
  const [kind, setKind] = useState("chat");
  const [to, setTo] = useState("");
  const [payload, setPayload] = useState('{"text": "hello", "format": "plain"}');
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const typed = parseTyped(payload);
  const send = async (): Promise<void> => {
    if (typed.error !== undefined) return;
    setBusy(true);
    try {
      const body = { kind, payload: typed.value, ...(names(to).length > 0 ? { to: names(to) } : {}) };
      const { id } = await ask<{ id: string }>(path(space, "messages"), { method: "POST", body });
      notify(`Sent ${kind} as ${id}.`);
      onClose();
    } catch (error) {
      fail(asFailure(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Send to ${space.id}`} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <Field label="Kind" value={kind} onInput={setKind} options={KINDS} isRequired />
        <Field
          label="To"
          value={to}
          onInput={setTo}
          placeholder="everybody"
          hint="Participants, apart by commas. Everybody hears every envelope; this says whom it is meant for."
          options={space.participants.map(({ id }) => id)}
        />
        <Field label="Payload" value={payload} onInput={setPayload} lines={6} error={typed.error} />
        <Refused failure={failure} />
        <div class="actions end">
          <Button onPress={onClose}>Cancel</Button>
          <Button type="submit" kind="main" icon="send" isDisabled={isBusy || kind === "" || typed.error !== undefined}>
            Send
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function InviteDialog({ space, onClose }: ActProps) {
  const [participant, setParticipant] = useState("");
  const [capabilities, setCapabilities] = useState("chat");
  const [token, setToken] = useState<string | undefined>(undefined);
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const invite = async (): Promise<void> => {
    setBusy(true);
    fail(undefined);
    try {
      const body = { participant, capabilities: names(capabilities).map((kind) => ({ kind })) };
      setToken((await ask<{ token: string }>(path(space, "invite"), { method: "POST", body })).token);
    } catch (error) {
      fail(asFailure(error));
    } finally {
      setBusy(false);
    }
  };
  if (token !== undefined) {
    return (
      <Dialog title={`${participant} may come in`} onClose={onClose}>
        <div class="stack">
          <p>This is the token of {participant}. It is shown this once: the server keeps a digest of it and nothing more.</p>
          <div class="command">
            <code tabIndex={0} data-token>
              {token}
            </code>
            <CopyButton text={token} label="Copy the token" />
          </div>
          <p class="note">With it, this joins the space:</p>
          <Command
            text={`curl -s '${window.location.origin}/participants/${encodeURIComponent(participant)}/messages?space=${encodeURIComponent(space.id)}' -H 'Authorization: Bearer TOKEN'`}
          />
          <div class="actions end">
            <Button kind="main" onPress={onClose}>
              I have kept it
            </Button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title={`Invite somebody to ${space.id}`} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void invite();
        }}
      >
        <Field label="Participant" value={participant} onInput={setParticipant} isRequired hint="The id under which it is known in the space." />
        <Field
          label="Capabilities"
          value={capabilities}
          onInput={setCapabilities}
          options={["chat", "chat stream/*", "*"]}
          hint="Kinds of envelopes that it may send, apart by blanks: chat, stream/*, mcp/*, or * for all."
        />
        <Refused failure={failure} />
        <div class="actions end">
          <Button onPress={onClose}>Cancel</Button>
          <Button type="submit" kind="main" isDisabled={isBusy || participant.trim() === ""}>
            Invite
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function KickDialog({ space, participant, onClose }: ActProps & { readonly participant: string }) {
  const [reason, setReason] = useState("");
  const kick = async (): Promise<void> => {
    try {
      const body = { participant, ...(reason === "" ? {} : { reason }) };
      await ask<unknown>(path(space, "kick"), { method: "POST", body });
      notify(`${participant} was put out of ${space.id}.`);
    } catch (error) {
      complain(asFailure(error));
    }
    onClose();
  };
  return (
    <Confirm title={`Put ${participant} out?`} verb="Kick" onConfirm={kick} onClose={onClose}>
      <p>
        Its connections to {space.id} are closed, its streams end, and its token is refused until it is invited again.
      </p>
      <Field label="Reason" value={reason} onInput={setReason} hint="Everybody in the space reads it." />
    </Confirm>
  );
}
