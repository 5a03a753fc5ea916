// The layout of the stream graph: participants on an ellipse, and a curved edge from the owner of a stream to each receiver. Pure geometry:
// the same space and slots give the same layout.

import { isTargeted, type Participant, type Space, type Stream } from "./survey.ts";

/** Edges drawn, targeted ones first; the rest is counted. */
export const EDGES_MAX = 300;
/** From this many slots on, names are drawn along the radii of a circle. */
export const DENSE = 21;
/** Narrower dense layouts have no names. */
const DENSE_WIDTH = 420;
/** Maximum width of a letter in pixels. */
const LETTER = 7.4;
/** Connection types of participants outside the server. */
const SOCKETS: ReadonlySet<string> = new Set(["websocket", "polling", "http"]);
const RADIUS = 7;
const DENSE_RADIUS = 4.5;
const ARROW = 8;

export interface Size {
  readonly width: number;
  readonly height: number;
}

export interface Node {
  readonly id: string;
  readonly x: number;
  readonly y: number;
  readonly isPresent: boolean;
  /** Whether it is part of the server and has no connection. */
  readonly isVirtual: boolean;
  readonly radius: number;
  readonly labelX: number;
  readonly labelY: number;
  readonly anchor: "start" | "middle" | "end";
  /** Rotation of the name in degrees. */
  readonly turn: number;
  readonly label: string;
}

export interface Edge {
  readonly key: string;
  readonly from: string;
  readonly to: string;
  readonly isTargeted: boolean;
  /** Whether the receiver is connected. */
  readonly isReached: boolean;
  readonly streams: number;
  /** Frames per second, if known. */
  readonly rate: number | undefined;
  readonly path: string;
  /** The path of the arrow head. */
  readonly head: string;
  readonly labelX: number;
  readonly labelY: number;
}

export interface GraphLayout extends Size {
  readonly isDense: boolean;
  readonly nodes: readonly Node[];
  readonly edges: readonly Edge[];
  /** Number of participants and edges not drawn. */
  readonly hiddenNodes: number;
  readonly hiddenEdges: number;
}

interface Pair {
  readonly from: string;
  readonly to: string;
  readonly isTargeted: boolean;
  isReached: boolean;
  streams: number;
  rate: number | undefined;
}

export function layoutGraph(
  space: Space,
  slots: readonly (string | undefined)[],
  size: Size,
  rateOf: (stream: Stream) => number | undefined,
): GraphLayout {
  const participants = new Map(space.participants.map((each) => [each.id, each]));
  const nodes = new Map<string, Node>();
  const longest = size.width < 520 ? 11 : 18;
  const letters = Math.max(0, ...slots.map((id) => Math.min(id?.length ?? 0, longest)));
  const ring: Ring = { slots: slots.length, longest, room: 2 * RADIUS + 12 + LETTER * letters };
  for (const [index, id] of slots.entries()) {
    const participant = id === undefined ? undefined : participants.get(id);
    if (participant !== undefined) nodes.set(participant.id, slots.length < DENSE ? node(participant, index, ring, size) : radial(participant, index, ring, size));
  }
  const pairs = paired(space.streams, rateOf);
  const drawn: Edge[] = [];
  for (const pair of pairs) {
    const [from, to] = [nodes.get(pair.from), nodes.get(pair.to)];
    if (from !== undefined && to !== undefined && drawn.length < EDGES_MAX) drawn.push(edge(pair, from, to, size));
  }
  return {
    ...size,
    isDense: slots.length >= DENSE,
    nodes: [...nodes.values()],
    edges: drawn,
    hiddenNodes: participants.size - nodes.size,
    hiddenEdges: pairs.length - drawn.length,
  };
}

/** Streams of one kind between the same two participants share an edge. */
function paired(streams: readonly Stream[], rateOf: (stream: Stream) => number | undefined): Pair[] {
  const pairs = new Map<string, Pair>();
  for (const stream of streams) {
    const targeted = isTargeted(stream);
    const receivers = new Set(stream.receivers);
    const ends = targeted ? new Set([...(stream.target ?? []), ...receivers]) : receivers;
    const rate = rateOf(stream);
    for (const to of ends) {
      if (to === stream.owner) continue;
      const key = JSON.stringify([stream.owner, to, targeted]);
      const pair = pairs.get(key) ?? { from: stream.owner, to, isTargeted: targeted, isReached: false, streams: 0, rate: undefined };
      pair.streams += 1;
      pair.isReached ||= receivers.has(to);
      if (rate !== undefined) pair.rate = (pair.rate ?? 0) + rate;
      pairs.set(key, pair);
    }
  }
  return [...pairs.values()].sort((one, other) => Number(other.isTargeted) - Number(one.isTargeted));
}

/** Values shared by all slots of a layout. */
interface Ring {
  readonly slots: number;
  /** Maximum letters of a name. */
  readonly longest: number;
  /** Pixels that names need outside the circle. */
  readonly room: number;
}

function node(participant: Participant, slot: number, { slots, longest, room }: Ring, size: Size): Node {
  const [middleX, middleY] = [size.width / 2, size.height / 2];
  const radiusX = Math.max(40, middleX - room);
  const radiusY = Math.max(40, middleY - 46);
  // Two nodes are placed side by side, not one above the other.
  const angle = (slots === 2 ? Math.PI : -Math.PI / 2) + (2 * Math.PI * slot) / Math.max(slots, 1);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const [x, y] = slots === 1 ? [middleX, middleY] : [middleX + radiusX * cos, middleY + radiusY * sin];
  const isLateral = slots > 1 && Math.abs(cos) > 0.3;
  const away = RADIUS + 8;
  return {
    ...nodeBase(participant, x, y, longest),
    radius: RADIUS,
    labelX: isLateral ? x + Math.sign(cos) * away : x,
    labelY: isLateral ? y + 4 : y + (sin > 0.3 ? away + 10 : -away),
    anchor: isLateral ? (cos > 0 ? "start" : "end") : "middle",
    turn: 0,
  };
}

/** A node in a dense layout: on a circle, with its name along the radius and never upside down. */
function radial(participant: Participant, slot: number, { slots, longest, room }: Ring, size: Size): Node {
  const hasNames = size.width >= DENSE_WIDTH;
  const radius = Math.max(40, Math.min(size.width, size.height) / 2 - (hasNames ? room : 2 * RADIUS));
  const angle = -Math.PI / 2 + (2 * Math.PI * slot) / slots;
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const isLeft = cos < -0.001;
  const degrees = (angle * 180) / Math.PI;
  return {
    ...nodeBase(participant, size.width / 2 + radius * cos, size.height / 2 + radius * sin, hasNames ? longest : 0),
    radius: DENSE_RADIUS,
    labelX: size.width / 2 + (radius + RADIUS + 6) * cos,
    labelY: size.height / 2 + (radius + RADIUS + 6) * sin,
    anchor: isLeft ? "end" : "start",
    turn: isLeft ? degrees + 180 : degrees,
  };
}

function nodeBase(participant: Participant, x: number, y: number, longest: number): Pick<Node, "id" | "x" | "y" | "isPresent" | "isVirtual" | "label"> {
  const isVirtual = participant.connected && participant.type !== null && !SOCKETS.has(participant.type);
  return { id: participant.id, x, y, isPresent: participant.connected, isVirtual, label: longest === 0 ? "" : shortened(participant.id, longest) };
}

function edge(pair: Pair, from: Node, to: Node, size: Size): Edge {
  // Curves bend towards the centre, and each direction keeps to its own side, so opposite edges do not overlap.
  const [deltaX, deltaY] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(deltaX, deltaY) || 1;
  const aside = pair.isTargeted ? 12 : 26;
  const bendX = (from.x + to.x) / 2 + 0.22 * (size.width / 2 - (from.x + to.x) / 2) - (aside * deltaY) / length;
  const bendY = (from.y + to.y) / 2 + 0.22 * (size.height / 2 - (from.y + to.y) / 2) + (aside * deltaX) / length;
  const start = towards(from, bendX, bendY, from.radius + 3);
  const tip = towards(to, bendX, bendY, to.radius + 4);
  const end = towards(to, bendX, bendY, to.radius + 4 + ARROW);
  const [acrossX, acrossY] = [(end.y - tip.y) * 0.45, (tip.x - end.x) * 0.45];
  // Closer to the owner, so the labels of streams to one receiver do not overlap.
  const part = 0.4;
  const along = (one: number, bend: number, other: number): number =>
    (1 - part) ** 2 * one + 2 * (1 - part) * part * bend + part ** 2 * other;
  return {
    key: JSON.stringify([pair.from, pair.to, pair.isTargeted]),
    from: pair.from,
    to: pair.to,
    isTargeted: pair.isTargeted,
    isReached: pair.isReached,
    streams: pair.streams,
    rate: pair.rate,
    path: `M${at(start.x, start.y)}Q${at(bendX, bendY)} ${at(pair.isTargeted ? end.x : tip.x, pair.isTargeted ? end.y : tip.y)}`,
    head: `M${at(end.x + acrossX, end.y + acrossY)}L${at(tip.x, tip.y)}L${at(end.x - acrossX, end.y - acrossY)}${pair.isTargeted ? "Z" : ""}`,
    labelX: along(start.x, bendX, tip.x),
    labelY: along(start.y, bendY, tip.y),
  };
}

function towards(from: { readonly x: number; readonly y: number }, x: number, y: number, far: number): { x: number; y: number } {
  const length = Math.hypot(x - from.x, y - from.y) || 1;
  return { x: from.x + ((x - from.x) * far) / length, y: from.y + ((y - from.y) * far) / length };
}

function at(x: number, y: number): string {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

/** Shorten a long name in the middle, because numbered names differ at the end. */
export function shortened(text: string, longest: number): string {
  if (text.length <= longest) return text;
  const kept = longest - 1;
  const head = Math.ceil(kept / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (kept - head))}`;
}
