// The entry point of the console.

import { render } from "preact";

import "uplot/dist/uPlot.min.css";
import "./styles/colours.css";
import "./styles/frame.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./styles/spaces.css";
import "./styles/tokens.css";
import "./styles/pipeline.css";

import { App } from "./app.tsx";
import { watchConnection } from "./connection.ts";
import { watchRoute } from "./router.ts";
import { resume } from "./session.ts";
import { watchShortcuts } from "./shortcuts.ts";
import { watchTelemetry } from "./telemetry.ts";
import { watchTheme } from "./theme.ts";
import { watchLinks } from "./tokens/browser.ts";

watchTheme();
watchLinks();
watchRoute();
watchConnection();
watchShortcuts();
watchTelemetry();
void resume();

const root = document.getElementById("console");
if (root !== null) render(<App />, root);
