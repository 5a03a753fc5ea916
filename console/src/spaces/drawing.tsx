// The picture of a space. Aimed streams are whole lines with filled heads and their rates; those to everybody are dashed with open
// heads, and their rate stands at their owner. The table beside it says the same in words.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { plural, rate } from "../words.ts";
import { CROWD, type Edge, type Node, type Picture, picture } from "./picture.ts";
import { SEATS_MAX, Seating } from "./seating.ts";
import { isTargeted, type Measured, type Space } from "./survey.ts";

const HEIGHT_MIN = 320;
const HEIGHT_MAX = 560;
/** Edges up to which each has its rate beside it; else those of the participant that is pointed at. */
const RATES_MAX = 40;
/** How far below its name stands what a participant says to all. */
const SPOKEN_PX = 14;

export function Drawing({ space, measured }: { space: Space; measured: Measured }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [focus, setFocus] = useState<string | undefined>(undefined);
  const seating = useMemo(() => new Seating(), [space.id]);
  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const watcher = new ResizeObserver(() => setWidth(host.clientWidth));
    watcher.observe(host);
    return () => watcher.disconnect();
  }, []);
  // Those who are there first, so that they are drawn when not all can be.
  const order = [...space.participants].sort((one, other) => Number(other.connected) - Number(one.connected) || (one.id < other.id ? -1 : 1));
  const seats = seating.take(order.slice(0, SEATS_MAX).map(({ id }) => id));
  const height = Math.round(Math.min(HEIGHT_MAX, Math.max(HEIGHT_MIN, width * (seats.length < CROWD ? 0.74 : 1))));
  const drawn = picture(space, seats, { width, height }, (stream) => measured.streamRate(space, stream, "frames"));
  const hidden = [
    drawn.hiddenNodes > 0 ? plural(drawn.hiddenNodes, "participant") : "",
    drawn.hiddenEdges > 0 ? plural(drawn.hiddenEdges, "edge") : "",
  ].filter((part) => part !== "");
  return (
    <div>
      <div class="drawing" ref={box}>
        {width > 0 && <Sketch drawn={drawn} space={space} measured={measured} focus={focus} onFocus={setFocus} />}
      </div>
      <ul class="drawing-key" aria-label="What the lines mean">
        <li>
          <svg width="34" height="10" aria-hidden="true">
            <path class="edge aimed" d="M1 5H24" />
            <path class="head aimed" d="M24 1.4L32 5L24 8.6Z" />
          </svg>
          aimed at somebody, frames/s
        </li>
        <li>
          <svg width="34" height="10" aria-hidden="true">
            <path class="edge" d="M1 5H31" />
            <path class="head" d="M24 1.4L32 5L24 8.6" />
          </svg>
          to everybody
        </li>
        <li>
          <svg width="14" height="14" aria-hidden="true">
            <circle class="seat absent" cx="7" cy="7" r="5.5" />
          </svg>
          not here
        </li>
        {hidden.length > 0 && <li class="told">Not drawn: {hidden.join(" and ")}; the tables have all.</li>}
      </ul>
    </div>
  );
}

interface SketchProps {
  readonly drawn: Picture;
  readonly space: Space;
  readonly measured: Measured;
  readonly focus: string | undefined;
  readonly onFocus: (id: string | undefined) => void;
}

function Sketch({ drawn, space, measured, focus, onFocus }: SketchProps) {
  const isDimmed = (edge: Edge): boolean => focus !== undefined && edge.from !== focus && edge.to !== focus;
  const spoken = new Map<string, number>();
  for (const stream of space.streams) {
    if (isTargeted(stream)) continue;
    spoken.set(stream.owner, (spoken.get(stream.owner) ?? 0) + (measured.streamRate(space, stream, "frames") ?? 0));
  }
  return (
    <svg
      class={drawn.isCrowd ? "crowd" : undefined}
      width={drawn.width}
      height={drawn.height}
      viewBox={`0 0 ${drawn.width} ${drawn.height}`}
      role="img"
      aria-label={`Who streams to whom in ${space.id}: ${plural(drawn.nodes.length, "participant")}, ${plural(drawn.edges.length, "edge")}. The table of streams says the same.`}
    >
      {drawn.edges.map((edge) => (
        <EdgeDrawing key={edge.key} edge={edge} isDimmed={isDimmed(edge)} />
      ))}
      {drawn.nodes.map((node) => (
        <NodeDrawing key={node.id} node={node} everybody={spoken.get(node.id)} onFocus={onFocus} />
      ))}
      {drawn.edges
        .filter((edge) => edge.isTargeted && edge.rate !== undefined && (drawn.edges.length <= RATES_MAX || edge.from === focus || edge.to === focus))
        .map((edge) => (
          <text key={edge.key} class={isDimmed(edge) ? "flow dim" : "flow"} x={edge.labelX} y={edge.labelY + 4} text-anchor="middle">
            {rate(edge.rate)}/s
          </text>
        ))}
    </svg>
  );
}

function EdgeDrawing({ edge, isDimmed }: { edge: Edge; isDimmed: boolean }) {
  const kind = `${edge.isTargeted ? "aimed" : ""} ${edge.isReached ? "" : "unreached"} ${isDimmed ? "dim" : ""}`;
  const weight = 1.2 + Math.min(2, Math.log10(1 + (edge.rate ?? 0)) * 0.8);
  return (
    <g>
      <title>{`${edge.from} to ${edge.to}: ${plural(edge.streams, edge.isTargeted ? "aimed stream" : "stream to everybody", edge.isTargeted ? "aimed streams" : "streams to everybody")}, ${rate(edge.rate)} frames a second`}</title>
      <path class={`edge ${kind}`} d={edge.path} stroke-width={weight} />
      <path class={`head ${kind}`} d={edge.head} />
    </g>
  );
}

interface NodeProps {
  readonly node: Node;
  /** Frames a second that it sends to everybody, if it has such a stream. */
  readonly everybody: number | undefined;
  readonly onFocus: (id: string | undefined) => void;
}

function NodeDrawing({ node, everybody, onFocus }: NodeProps) {
  const kind = node.isPresent ? "seat" : "seat absent";
  return (
    <g onMouseEnter={() => onFocus(node.id)} onMouseLeave={() => onFocus(undefined)}>
      <title>{`${node.id}: ${node.isPresent ? "here" : "not here"}`}</title>
      {node.isVirtual ? (
        <rect class={kind} x={node.x - node.radius} y={node.y - node.radius} width={2 * node.radius} height={2 * node.radius} rx="3" />
      ) : (
        <circle class={kind} cx={node.x} cy={node.y} r={node.radius} />
      )}
      <text
        class={`who ${node.isPresent ? "" : "absent"} ${node.turn === 0 ? "" : "ray"}`}
        x={node.labelX}
        y={everybody !== undefined && node.labelY < node.y && node.turn === 0 ? node.labelY - SPOKEN_PX : node.labelY}
        text-anchor={node.anchor}
        dominant-baseline={node.turn === 0 ? undefined : "central"}
        transform={node.turn === 0 ? undefined : `rotate(${node.turn} ${node.labelX} ${node.labelY})`}
      >
        {node.label}
        {everybody !== undefined && node.turn === 0 && (
          <tspan class="spoken" x={node.labelX} dy={SPOKEN_PX}>
            {rate(everybody)}/s to all
          </tspan>
        )}
      </text>
    </g>
  );
}
