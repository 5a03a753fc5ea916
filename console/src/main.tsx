// Where the console starts.

import { render } from "preact";

import "uplot/dist/uPlot.min.css";
import "./styles/colours.css";
import "./styles/frame.css";
import "./styles/parts.css";
import "./styles/pages.css";

import { App } from "./app.tsx";
import { watchLink } from "./link.ts";
import { watchPlace } from "./place.ts";
import { resume } from "./session.ts";
import { watchShortcuts } from "./shortcuts.ts";
import { watchTelemetry } from "./telemetry.ts";
import { watchTheme } from "./theme.ts";

watchTheme();
watchPlace();
watchLink();
watchShortcuts();
watchTelemetry();
void resume();

const root = document.getElementById("console");
if (root !== null) render(<App />, root);
