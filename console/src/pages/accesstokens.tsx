// The tokens that let clients in: what each may do, until when, and when it was last used. Secrets are shown once, when they are made.

import { useState } from "preact/hooks";

import { notify, report } from "../notices.ts";
import { Button } from "../parts/button.tsx";
import { Confirm, FormDialog, TokenDialog } from "../parts/form.tsx";
import { Choice, Field } from "../parts/field.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { serverTime } from "../skew.ts";
import { ago, moment, plural } from "../format.ts";

interface Token {
  readonly name: string;
  readonly agent: string | null;
  readonly tenant: string | null;
  readonly scopes: readonly string[];
  readonly origin: "config" | "minted";
  readonly created_at: string | null;
  readonly expires_at: string | null;
  readonly last_used_at: string | null;
}

interface Answer {
  readonly tokens: readonly Token[];
  readonly required: boolean;
  readonly kept: boolean;
}

const COLUMNS: readonly Column<Token>[] = [
  { key: "name", title: "Name", cell: ({ name }) => name, sort: ({ name }) => name },
  { key: "agent", title: "Agent", cell: ({ agent }) => agent ?? "any", sort: ({ agent }) => agent, help: "the agent that it speaks for" },
  { key: "tenant", title: "Tenant", cell: ({ tenant }) => tenant ?? "–", sort: ({ tenant }) => tenant },
  { key: "scopes", title: "Scopes", cell: ({ scopes }) => <span class="mono wide">{scopes.join(", ")}</span> },
  { key: "origin", title: "From", cell: ({ origin }) => (origin === "config" ? "config file" : "minted"), sort: ({ origin }) => origin },
  { key: "made", title: "Made", cell: ({ created_at }) => (created_at === null ? "–" : moment(created_at)), sort: ({ created_at }) => created_at },
  { key: "expires", title: "Expires", cell: Expiry, sort: ({ expires_at }) => expires_at },
  {
    key: "used",
    title: "Last used",
    cell: ({ last_used_at }) => (last_used_at === null ? <span class="note">not since the start</span> : ago(last_used_at, serverTime(Date.now()))),
    sort: ({ last_used_at }) => last_used_at,
  },
];

function Expiry({ expires_at }: Token) {
  if (expires_at === null) return <>never</>;
  return Date.parse(expires_at) <= serverTime(Date.now()) ? <Badge tone="warn">expired</Badge> : <>{moment(expires_at)}</>;
}

export function AccessTokensPage() {
  const { data, failure, refresh } = useResource("/v1/tokens", (stop) => fetchJson<Answer>("/v1/tokens", { signal: stop }), 2_000);
  const [isMinting, setMinting] = useState(false);
  const [revoking, revoke] = useState<string | undefined>(undefined);
  const answer = data.value;
  const columns: readonly Column<Token>[] = [
    ...COLUMNS,
    {
      key: "revoke",
      title: "Action",
      cell: ({ name, origin }) =>
        origin === "minted" && (
          <Button kind="danger" label={`Revoke ${name}`} onPress={() => revoke(name)}>
            Revoke
          </Button>
        ),
    },
  ];
  const end = async (name: string): Promise<void> => {
    await report(async () => {
      const { closed, required } = await fetchJson<{ closed: number; required: boolean }>(`/v1/tokens/${encodeURIComponent(name)}`, { method: "DELETE" });
      notify(`Token ${name} revoked, ${plural(closed, "connection")} closed.${required ? "" : " Clients on this machine need no token now."}`);
    });
    revoke(undefined);
    refresh();
  };
  return (
    <div class="stack">
      <PageHead
        title="Access tokens"
        note={answer === undefined ? "Loading…" : answer.required ? "Every client needs a token." : "Clients on the server's machine need no token."}
        actions={
          <Button kind="main" isDisabled={answer === undefined} onPress={() => setMinting(true)}>
            Mint token
          </Button>
        }
      />
      <Refused failure={failure.value} />
      <Panel title="Tokens" isFlush note={answer?.kept === false ? "minted tokens end with the server, which has no data directory" : undefined}>
        <Table
          label="Tokens"
          columns={columns}
          rows={answer?.tokens ?? []}
          keyOf={({ name }) => name}
          order={{ key: "name", isFalling: false }}
          empty={
            <Empty title={answer === undefined ? "Loading…" : "No tokens"}>
              <p>Mint a token for each client that connects from another machine.</p>
            </Empty>
          }
        />
      </Panel>
      {isMinting && (
        <MintDialog
          isFirst={answer?.required === false}
          onClose={() => {
            setMinting(false);
            refresh();
          }}
        />
      )}
      {revoking !== undefined && (
        <Confirm title={`Revoke ${revoking}`} word={revoking} verb="Revoke" onConfirm={() => end(revoking)} onClose={() => revoke(undefined)}>
          <p>The server rejects the token from now on and closes the connections that it opened. You cannot undo this.</p>
        </Confirm>
      )}
    </div>
  );
}

const DAY_MS = 86_400_000;
const EXPIRIES = [["", "never"], ["1", "1 day"], ["7", "7 days"], ["30", "30 days"], ["365", "1 year"]] as const;

function MintDialog({ isFirst, onClose }: { isFirst: boolean; onClose: () => void }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState("streams:*:*");
  const [agent, setAgent] = useState("");
  const [tenant, setTenant] = useState("");
  const [days, setDays] = useState<(typeof EXPIRIES)[number][0]>("");
  const [made, setMade] = useState<string | undefined>(undefined);
  const mint = async (): Promise<void> => {
    const body = {
      name: name.trim(),
      scopes: scopes.split(/[\s,]+/).filter(Boolean),
      ...(agent.trim() === "" ? {} : { agent: agent.trim() }),
      ...(tenant.trim() === "" ? {} : { tenant: tenant.trim() }),
      ...(days === "" ? {} : { expires_at: new Date(serverTime(Date.now()) + Number(days) * DAY_MS).toISOString() }),
    };
    setMade((await fetchJson<{ token: string }>("/v1/tokens", { method: "POST", body })).token);
  };
  if (made !== undefined) return <TokenDialog name={name} token={made} onClose={onClose} />;
  return (
    <FormDialog title="Mint a token" verb="Mint" canSubmit={name.trim() !== "" && scopes.trim() !== ""} onSubmit={mint} onClose={onClose}>
      {isFirst && (
        <p class="banner warn">The first token ends access without a token: every client then needs one, and connections without a token close.</p>
      )}
      <Field label="Name" value={name} onInput={setName} isRequired hint="Letters, digits, dots, hyphens and underscores." />
      <Field
        label="Scopes"
        value={scopes}
        onInput={setScopes}
        isRequired
        options={["streams:*:*", "streams:*:read", "views:*:read", "admin:*"]}
        hint="Separated by commas: streams:<pattern>:<verb>, views:<pattern>:<verb>, or admin:* for everything."
      />
      <Field label="Agent" value={agent} onInput={setAgent} hint="The only agent that it may speak for; empty for any." />
      <Field label="Tenant" value={tenant} onInput={setTenant} hint="Confines it to the streams of a tenant; empty for none." />
      <Choice label="Expires" value={days} options={EXPIRIES} onChange={setDays} />
    </FormDialog>
  );
}
