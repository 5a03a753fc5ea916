// The frame of the console: navigation, connection banner, and the page of the current route.

import { useEffect, useRef } from "preact/hooks";

import { type PageEntry, pages } from "./pages.ts";
import { ConnectionBanner, Notices } from "./parts/banner.tsx";
import { Button } from "./parts/button.tsx";
import { Help } from "./parts/help.tsx";
import { Icon } from "./parts/icon.tsx";
import { Empty, PageHead } from "./parts/panel.tsx";
import { SignIn } from "./parts/signin.tsx";
import { href, route } from "./router.ts";
import { session, signOut } from "./session.ts";
import { isHelpShown } from "./shortcuts.ts";
import { nextTheme, theme } from "./theme.ts";

export function App() {
  const { state } = session.value;
  if (state === "loading") return <main class="sign-in" aria-busy="true" />;
  if (state === "out") {
    return (
      <>
        <ConnectionBanner />
        <SignIn failure={session.value.failure} />
      </>
    );
  }
  return <Frame version={session.value.who.version} />;
}

function Frame({ version }: { version: string }) {
  const [first = "", ...rest] = route.value.path;
  const page = pages.find(({ path }) => path === first);
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  // Move the focus to the heading of the new page, so keyboard and screen reader users continue there.
  useEffect(() => {
    document.title = page === undefined ? "Penstock" : `${page.title} – Penstock`;
    if (!isFirst.current) main.current?.querySelector("h1")?.focus({ preventScroll: true });
    if (!isFirst.current) window.scrollTo(0, 0);
    isFirst.current = false;
  }, [route.value.path.join("/")]);
  return (
    <div class="frame">
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          // The fragment holds the route, so the browser's own jump would change the page.
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <Navigation current={page} version={version} />
      <main id="content" ref={main} tabIndex={-1}>
        <ConnectionBanner />
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
      <PageHead title="Page not found" />
      <Empty title="The console has no page at this address.">
        <a href={href([])}>Go to Overview</a>
      </Empty>
    </>
  );
}
