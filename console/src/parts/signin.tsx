// The sign-in form. It does not change the URL, so the requested page opens after signing in.

import { useState } from "preact/hooks";

import type { Failure } from "../request.ts";
import { signIn } from "../session.ts";
import { Button, Command } from "./button.tsx";
import { Field } from "./field.tsx";
import { Refused } from "./panel.tsx";

export function SignIn({ failure }: { failure: Failure | undefined }) {
  const [token, setToken] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (): Promise<void> => {
    setBusy(true);
    await signIn(token.trim());
    setBusy(false);
  };
  return (
    <main class="sign-in" id="content">
      <form
        class="panel stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim() !== "" && !isBusy) void submit();
        }}
      >
        <div>
          <p class="brand">Penstock</p>
          <h1>Sign in</h1>
        </div>
        <p>The console is for the operator of this server. To get a sign-in link, run on the server's machine:</p>
        <Command text="penstock console" />
        <p>Or paste the token from run/operator.token in the data directory.</p>
        <Field label="Token" type="password" value={token} onInput={setToken} autocomplete="current-password" isRequired />
        <Refused failure={failure} />
        <Button type="submit" kind="main" isDisabled={isBusy || token.trim() === ""}>
          {isBusy ? "Signing in…" : "Sign in"}
        </Button>
      </form>
    </main>
  );
}
