// The frame of the console: navigation, the line to the server, and the page that the address names.

import { useEffect, useRef } from "preact/hooks";

import { type PageEntry, pages } from "./pages.ts";
import { LinkBanner, Notices } from "./parts/banner.tsx";
import { Button } from "./parts/button.tsx";
import { Help } from "./parts/help.tsx";
import { Icon } from "./parts/icon.tsx";
import { Empty, PageHead } from "./parts/panel.tsx";
import { SignIn } from "./parts/signin.tsx";
import { href, place } from "./place.ts";
import { session, signOut } from "./session.ts";
import { isHelpShown } from "./shortcuts.ts";
import { nextTheme, theme } from "./theme.ts";

export function App() {
  const { state } = session.value;
  if (state === "asking") return <main class="sign-in" aria-busy="true" />;
  if (state === "out") {
    return (
      <>
        <LinkBanner />
        <SignIn failure={session.value.failure} />
      </>
    );
  }
  return <Frame version={session.value.who.version} />;
}

function Frame({ version }: { version: string }) {
  const [first = "", ...rest] = place.value.path;
  const page = pages.find(({ path }) => path === first);
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  // Who goes to another page with the keyboard or a screen reader goes on reading there.
  useEffect(() => {
    document.title = page === undefined ? "Penstock" : `${page.title} – Penstock`;
    if (!isFirst.current) main.current?.querySelector("h1")?.focus({ preventScroll: true });
    if (!isFirst.current) window.scrollTo(0, 0);
    isFirst.current = false;
  }, [place.value.path.join("/")]);
  return (
    <div class="frame">
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          // The fragment is the address of the page, so the jump is made by hand.
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <Navigation current={page} version={version} />
      <main id="content" ref={main} tabIndex={-1}>
        <LinkBanner />
        {page === undefined ? <Unknown /> : <page.Page rest={rest} />}
      </main>
      <Notices />
      <Help />
    </div>
  );
}

function Navigation({ current, version }: { current: PageEntry | undefined; version: string }) {
  return (
    <header class="side">
      <p class="brand">
        Penstock <span class="note">{version}</span>
      </p>
      <nav aria-label="Pages">
        <ul>
          {pages.map((page) => (
            <li key={page.path}>
              <a href={href(page.path === "" ? [] : [page.path])} aria-current={page === current ? "page" : undefined}>
                <Icon name={page.icon} />
                <span class="long">{page.title}</span>
                <span class="short">{page.short}</span>
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="tools">
        <Button icon={theme.value} kind="quiet" label={`Colours: ${theme.value}`} onPress={nextTheme} />
        <Button
          icon="help"
          kind="quiet"
          label="Keyboard shortcuts"
          onPress={() => {
            isHelpShown.value = true;
          }}
        />
        <Button icon="exit" kind="quiet" label="Sign out" onPress={() => void signOut()} />
      </div>
    </header>
  );
}

function Unknown() {
  return (
    <>
      <PageHead title="There is no such page" />
      <Empty title="The address names nothing that the console has.">
        <a href={href([])}>To the overview</a>
      </Empty>
    </>
  );
}
