// The stream graph of a space. Targeted streams are solid lines with filled heads and their rates. Broadcast streams are dashed lines with
// open heads, and their rate is shown at the owner. The table of streams has the same data.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { plural, rate } from "../format.ts";
import { DENSE, type Edge, type GraphLayout, layoutGraph, type Node } from "./layout.ts";
import { NODES_MAX, Slots } from "./slots.ts";
import { isTargeted, type Measured, type Space } from "./survey.ts";

const HEIGHT_MIN = 320;
const HEIGHT_MAX = 560;
/** Up to this many edges each shows its rate; with more, only those of the participant under the pointer. */
const RATES_MAX = 40;
/** Pixels between the name of a participant and its broadcast rate. */
const BROADCAST_PX = 14;

export function Graph({ space, measured }: { space: Space; measured: Measured }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [focus, setFocus] = useState<string | undefined>(undefined);
  const positions = useMemo(() => new Slots(), [space.id]);
  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const watcher = new ResizeObserver(() => setWidth(host.clientWidth));
    watcher.observe(host);
    return () => watcher.disconnect();
  }, []);
  // Connected participants first, so they are drawn if there are too many.
  const order = [...space.participants].sort((one, other) => Number(other.connected) - Number(one.connected) || (one.id < other.id ? -1 : 1));
  const slots = positions.assign(order.slice(0, NODES_MAX).map(({ id }) => id));
  const height = Math.round(Math.min(HEIGHT_MAX, Math.max(HEIGHT_MIN, width * (slots.length < DENSE ? 0.74 : 1))));
  const layout = layoutGraph(space, slots, { width, height }, (stream) => measured.streamRate(space, stream, "frames"));
  const hidden = [
    layout.hiddenNodes > 0 ? plural(layout.hiddenNodes, "participant") : "",
    layout.hiddenEdges > 0 ? plural(layout.hiddenEdges, "edge") : "",
  ].filter((part) => part !== "");
  return (
    <div>
      <div class="graph" ref={box}>
        {width > 0 && <GraphSvg layout={layout} space={space} measured={measured} focus={focus} onFocus={setFocus} />}
      </div>
      <ul class="graph-key" aria-label="Legend">
        <li>
          <svg width="34" height="10" aria-hidden="true">
            <path class="edge targeted" d="M1 5H24" />
            <path class="head targeted" d="M24 1.4L32 5L24 8.6Z" />
          </svg>
          targeted, frames/s
        </li>
        <li>
          <svg width="34" height="10" aria-hidden="true">
            <path class="edge" d="M1 5H31" />
            <path class="head" d="M24 1.4L32 5L24 8.6" />
          </svg>
          broadcast
        </li>
        <li>
          <svg width="14" height="14" aria-hidden="true">
            <circle class="node absent" cx="7" cy="7" r="5.5" />
          </svg>
          offline
        </li>
        {hidden.length > 0 && <li class="hidden-note">Not drawn: {hidden.join(" and ")}. The tables list all.</li>}
      </ul>
    </div>
  );
}

interface GraphSvgProps {
  readonly layout: GraphLayout;
  readonly space: Space;
  readonly measured: Measured;
  readonly focus: string | undefined;
  readonly onFocus: (id: string | undefined) => void;
}

function GraphSvg({ layout, space, measured, focus, onFocus }: GraphSvgProps) {
  const isDimmed = (edge: Edge): boolean => focus !== undefined && edge.from !== focus && edge.to !== focus;
  const broadcasts = new Map<string, number>();
  for (const stream of space.streams) {
    if (isTargeted(stream)) continue;
    broadcasts.set(stream.owner, (broadcasts.get(stream.owner) ?? 0) + (measured.streamRate(space, stream, "frames") ?? 0));
  }
  return (
    <svg
      class={layout.isDense ? "dense" : undefined}
      width={layout.width}
      height={layout.height}
      viewBox={`0 0 ${layout.width} ${layout.height}`}
      role="img"
      aria-label={`Stream graph of ${space.id}: ${plural(layout.nodes.length, "participant")}, ${plural(layout.edges.length, "edge")}. The table of streams has the same data.`}
    >
      {layout.edges.map((edge) => (
        <EdgeShape key={edge.key} edge={edge} isDimmed={isDimmed(edge)} />
      ))}
      {layout.nodes.map((node) => (
        <NodeShape key={node.id} node={node} broadcast={broadcasts.get(node.id)} onFocus={onFocus} />
      ))}
      {layout.edges
        .filter((edge) => edge.isTargeted && edge.rate !== undefined && (layout.edges.length <= RATES_MAX || edge.from === focus || edge.to === focus))
        .map((edge) => (
          <text key={edge.key} class={isDimmed(edge) ? "flow dim" : "flow"} x={edge.labelX} y={edge.labelY + 4} text-anchor="middle">
            {rate(edge.rate)}/s
          </text>
        ))}
    </svg>
  );
}

function EdgeShape({ edge, isDimmed }: { edge: Edge; isDimmed: boolean }) {
  const kind = `${edge.isTargeted ? "targeted" : ""} ${edge.isReached ? "" : "unreached"} ${isDimmed ? "dim" : ""}`;
  const weight = 1.2 + Math.min(2, Math.log10(1 + (edge.rate ?? 0)) * 0.8);
  return (
    <g>
      <title>{`${edge.from} to ${edge.to}: ${plural(edge.streams, edge.isTargeted ? "targeted stream" : "broadcast stream")}, ${rate(edge.rate)} frames/s`}</title>
      <path class={`edge ${kind}`} d={edge.path} stroke-width={weight} />
      <path class={`head ${kind}`} d={edge.head} />
    </g>
  );
}

interface NodeProps {
  readonly node: Node;
  /** Broadcast frames per second, if it has a broadcast stream. */
  readonly broadcast: number | undefined;
  readonly onFocus: (id: string | undefined) => void;
}

function NodeShape({ node, broadcast, onFocus }: NodeProps) {
  const kind = node.isPresent ? "node" : "node absent";
  return (
    <g onMouseEnter={() => onFocus(node.id)} onMouseLeave={() => onFocus(undefined)}>
      <title>{`${node.id}: ${node.isPresent ? "connected" : "offline"}`}</title>
      {node.isVirtual ? (
        <rect class={kind} x={node.x - node.radius} y={node.y - node.radius} width={2 * node.radius} height={2 * node.radius} rx="3" />
      ) : (
        <circle class={kind} cx={node.x} cy={node.y} r={node.radius} />
      )}
      <text
        class={`name ${node.isPresent ? "" : "absent"} ${node.turn === 0 ? "" : "radial"}`}
        x={node.labelX}
        y={broadcast !== undefined && node.labelY < node.y && node.turn === 0 ? node.labelY - BROADCAST_PX : node.labelY}
        text-anchor={node.anchor}
        dominant-baseline={node.turn === 0 ? undefined : "central"}
        transform={node.turn === 0 ? undefined : `rotate(${node.turn} ${node.labelX} ${node.labelY})`}
      >
        {node.label}
        {broadcast !== undefined && node.turn === 0 && (
          <tspan class="broadcast-rate" x={node.labelX} dy={BROADCAST_PX}>
            {rate(broadcast)}/s broadcast
          </tspan>
        )}
      </text>
    </g>
  );
}
