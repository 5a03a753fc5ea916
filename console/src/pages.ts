// The pages of the console, in navigation order. To add one, write a component in `pages/` and list it here.

import type { ComponentType } from "preact";

import { AccessTokensPage } from "./pages/accesstokens.tsx";
import { ClusterPage } from "./pages/cluster.tsx";
import { ConnectionsPage } from "./pages/connections.tsx";
import { DeadPage } from "./pages/dead.tsx";
import { OverviewPage } from "./pages/overview.tsx";
import { PipelinePage } from "./pages/pipeline.tsx";
import { QueuesPage } from "./pages/queues.tsx";
import { SettingsPage } from "./pages/settings.tsx";
import { SpacesPage } from "./pages/spaces.tsx";
import { TailPage } from "./pages/tail.tsx";
import { TokenStreamsPage } from "./pages/tokenstreams.tsx";
import type { IconName } from "./parts/icon.tsx";

export interface PageEntry {
  /** The first path segment after `#/`; empty for the start page. */
  readonly path: string;
  readonly title: string;
  /** The title in the navigation on a phone. */
  readonly short: string;
  /** The keyboard shortcut: `g`, then this letter. */
  readonly letter: string;
  readonly icon: IconName;
  /** Receives the remaining path segments. */
  readonly Page: ComponentType<{ rest: readonly string[] }>;
}

export const pages: readonly PageEntry[] = [
  { path: "", title: "Overview", short: "Overview", letter: "o", icon: "overview", Page: OverviewPage },
  { path: "tail", title: "Live tail", short: "Tail", letter: "t", icon: "tail", Page: TailPage },
  { path: "queues", title: "Queues", short: "Queues", letter: "q", icon: "queues", Page: QueuesPage },
  { path: "dead", title: "Dead letters", short: "Dead", letter: "d", icon: "warn", Page: DeadPage },
  { path: "spaces", title: "Spaces", short: "Spaces", letter: "s", icon: "spaces", Page: SpacesPage },
  { path: "tokens", title: "Token streams", short: "Tokens", letter: "k", icon: "streams", Page: TokenStreamsPage },
  { path: "pipeline", title: "Pipeline", short: "Pipeline", letter: "p", icon: "pipeline", Page: PipelinePage },
  { path: "connections", title: "Connections", short: "Peers", letter: "c", icon: "connections", Page: ConnectionsPage },
  { path: "cluster", title: "Cluster", short: "Cluster", letter: "l", icon: "tree", Page: ClusterPage },
  { path: "access", title: "Access tokens", short: "Access", letter: "a", icon: "access", Page: AccessTokensPage },
  { path: "settings", title: "Settings", short: "Settings", letter: "e", icon: "settings", Page: SettingsPage },
];
