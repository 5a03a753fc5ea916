// How the whole server fares.

import { PageHead } from "../parts/panel.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Plot } from "../parts/plot.tsx";
import { history, reading } from "../telemetry.ts";
import { valueOf } from "../exposition.ts";
import { count, rate } from "../words.ts";

export function OverviewPage() {
  const latest = reading.value;
  if (latest === undefined) return <PageHead title="Overview" />;
  return (
    <div class="stack">
      <PageHead title="Overview" />
      <Figures>
        <Figure label="Accepted" value={count(valueOf(latest.scrape, "penstock_q_in_total"))} metric="penstock_q_in_total" />
      </Figures>
      <Plot title="Envelopes per second" track={history.track(["in", "out"], 600)} series={[{ label: "in" }, { label: "out" }]} format={rate} />
    </div>
  );
}
