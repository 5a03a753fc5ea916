// The operator's dialogs for a space: send, invite, kick. The server sends envelopes as `operator`.

import { useState } from "preact/hooks";

import { parseTyped } from "../json.ts";
import { notifyFailure, notify } from "../notices.ts";
import { Button, Command, CopyButton } from "../parts/button.tsx";
import { Confirm, Dialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Refused } from "../parts/panel.tsx";
import { asFailure, fetchJson, type Failure } from "../request.ts";
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
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const typed = parseTyped(payload);
  const send = async (): Promise<void> => {
    if (typed.error !== undefined) return;
    setBusy(true);
    try {
      const body = { kind, payload: typed.value, ...(names(to).length > 0 ? { to: names(to) } : {}) };
      const { id } = await fetchJson<{ id: string }>(path(space, "messages"), { method: "POST", body });
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
          placeholder="all"
          hint="Participants, separated by commas. All participants receive every envelope; this field names the addressees."
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

export function InviteDialog({ space, onClose }: DialogProps) {
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
      setToken((await fetchJson<{ token: string }>(path(space, "invite"), { method: "POST", body })).token);
    } catch (error) {
      fail(asFailure(error));
    } finally {
      setBusy(false);
    }
  };
  if (token !== undefined) {
    return (
      <Dialog title={`Token for ${participant}`} onClose={onClose}>
        <div class="stack">
          <p>The token of {participant}. It is shown only once: the server stores only a digest.</p>
          <div class="command">
            <code tabIndex={0} data-token>
              {token}
            </code>
            <CopyButton text={token} label="Copy token" />
          </div>
          <p class="note">Join the space with it:</p>
          <Command
            text={`curl -s '${window.location.origin}/participants/${encodeURIComponent(participant)}/messages?space=${encodeURIComponent(space.id)}' -H 'Authorization: Bearer TOKEN'`}
          />
          <div class="actions end">
            <Button kind="main" onPress={onClose}>
              Done
            </Button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title={`Invite a participant to ${space.id}`} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void invite();
        }}
      >
        <Field label="Participant" value={participant} onInput={setParticipant} isRequired hint="The id of the participant in the space." />
        <Field
          label="Capabilities"
          value={capabilities}
          onInput={setCapabilities}
          options={["chat", "chat stream/*", "*"]}
          hint="Kinds of envelopes that it may send, separated by spaces: chat, stream/*, mcp/*, or * for all."
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
