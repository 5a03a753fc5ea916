// Who streams to whom, as places and curves: participants on an ellipse, an edge from the owner of a stream to each of its receivers.
// Pure geometry: the same space and the same seats give the same picture.

import { isTargeted, type Participant, type Space, type Stream } from "./survey.ts";

/** Edges that are drawn; those that are aimed come first, the rest is counted. */
export const EDGES_MAX = 300;
/** From this many seats on, names stand along the rays of a circle. */
export const CROWD = 21;
/** Narrower pictures of a crowd have no names. */
const CROWD_WIDTH = 420;
/** Pixels of a letter, on the safe side. */
const LETTER = 7.4;
/** How those come who are not part of the server. */
const SOCKETS: ReadonlySet<string> = new Set(["websocket", "polling", "http"]);
const RADIUS = 7;
const CROWD_RADIUS = 4.5;
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
  /** Not behind a connection: it is part of the server. */
  readonly isVirtual: boolean;
  readonly radius: number;
  readonly labelX: number;
  readonly labelY: number;
  readonly anchor: "start" | "middle" | "end";
  /** Degrees by which the name is turned about its place. */
  readonly turn: number;
  readonly label: string;
}

export interface Edge {
  readonly key: string;
  readonly from: string;
  readonly to: string;
  readonly isTargeted: boolean;
  /** Whether the receiver is there. */
  readonly isReached: boolean;
  readonly streams: number;
  /** Frames per second, if known. */
  readonly rate: number | undefined;
  readonly path: string;
  /** The two sides and the tip of the arrow's head. */
  readonly head: string;
  readonly labelX: number;
  readonly labelY: number;
}

export interface Picture extends Size {
  readonly isCrowd: boolean;
  readonly nodes: readonly Node[];
  readonly edges: readonly Edge[];
  /** Participants and edges that are not drawn. */
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

export function picture(
  space: Space,
  seats: readonly (string | undefined)[],
  size: Size,
  rateOf: (stream: Stream) => number | undefined,
): Picture {
  const people = new Map(space.participants.map((each) => [each.id, each]));
  const nodes = new Map<string, Node>();
  const longest = size.width < 520 ? 11 : 18;
  const letters = Math.max(0, ...seats.map((id) => Math.min(id?.length ?? 0, longest)));
  const round: Round = { seats: seats.length, longest, room: 2 * RADIUS + 12 + LETTER * letters };
  for (const [index, id] of seats.entries()) {
    const person = id === undefined ? undefined : people.get(id);
    if (person !== undefined) nodes.set(person.id, seats.length < CROWD ? node(person, index, round, size) : ray(person, index, round, size));
  }
  const pairs = paired(space.streams, rateOf);
  const drawn: Edge[] = [];
  for (const pair of pairs) {
    const [from, to] = [nodes.get(pair.from), nodes.get(pair.to)];
    if (from !== undefined && to !== undefined && drawn.length < EDGES_MAX) drawn.push(edge(pair, from, to, size));
  }
  return {
    ...size,
    isCrowd: seats.length >= CROWD,
    nodes: [...nodes.values()],
    edges: drawn,
    hiddenNodes: people.size - nodes.size,
    hiddenEdges: pairs.length - drawn.length,
  };
}

/** Streams between the same two, aimed or not, are one edge. */
function paired(streams: readonly Stream[], rateOf: (stream: Stream) => number | undefined): Pair[] {
  const pairs = new Map<string, Pair>();
  for (const stream of streams) {
    const isAimed = isTargeted(stream);
    const receivers = new Set(stream.receivers);
    const ends = isAimed ? new Set([...(stream.target ?? []), ...receivers]) : receivers;
    const rate = rateOf(stream);
    for (const to of ends) {
      if (to === stream.owner) continue;
      const key = JSON.stringify([stream.owner, to, isAimed]);
      const pair = pairs.get(key) ?? { from: stream.owner, to, isTargeted: isAimed, isReached: false, streams: 0, rate: undefined };
      pair.streams += 1;
      pair.isReached ||= receivers.has(to);
      if (rate !== undefined) pair.rate = (pair.rate ?? 0) + rate;
      pairs.set(key, pair);
    }
  }
  return [...pairs.values()].sort((one, other) => Number(other.isTargeted) - Number(one.isTargeted));
}

/** What all seats of a picture have in common. */
interface Round {
  readonly seats: number;
  /** Letters of a name. */
  readonly longest: number;
  /** Pixels that names take beside the circle. */
  readonly room: number;
}

function node(person: Participant, seat: number, { seats, longest, room }: Round, size: Size): Node {
  const [middleX, middleY] = [size.width / 2, size.height / 2];
  const radiusX = Math.max(40, middleX - room);
  const radiusY = Math.max(40, middleY - 46);
  // Two stand beside each other, not one over the other.
  const angle = (seats === 2 ? Math.PI : -Math.PI / 2) + (2 * Math.PI * seat) / Math.max(seats, 1);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const [x, y] = seats === 1 ? [middleX, middleY] : [middleX + radiusX * cos, middleY + radiusY * sin];
  const isAside = seats > 1 && Math.abs(cos) > 0.3;
  const away = RADIUS + 8;
  return {
    ...seated(person, x, y, longest),
    radius: RADIUS,
    labelX: isAside ? x + Math.sign(cos) * away : x,
    labelY: isAside ? y + 4 : y + (sin > 0.3 ? away + 10 : -away),
    anchor: isAside ? (cos > 0 ? "start" : "end") : "middle",
    turn: 0,
  };
}

/** A seat among many: on a circle, its name along the ray to it, and never upside down. */
function ray(person: Participant, seat: number, { seats, longest, room }: Round, size: Size): Node {
  const hasNames = size.width >= CROWD_WIDTH;
  const radius = Math.max(40, Math.min(size.width, size.height) / 2 - (hasNames ? room : 2 * RADIUS));
  const angle = -Math.PI / 2 + (2 * Math.PI * seat) / seats;
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const isLeft = cos < -0.001;
  const degrees = (angle * 180) / Math.PI;
  return {
    ...seated(person, size.width / 2 + radius * cos, size.height / 2 + radius * sin, hasNames ? longest : 0),
    radius: CROWD_RADIUS,
    labelX: size.width / 2 + (radius + RADIUS + 6) * cos,
    labelY: size.height / 2 + (radius + RADIUS + 6) * sin,
    anchor: isLeft ? "end" : "start",
    turn: isLeft ? degrees + 180 : degrees,
  };
}

function seated(person: Participant, x: number, y: number, longest: number): Pick<Node, "id" | "x" | "y" | "isPresent" | "isVirtual" | "label"> {
  const isVirtual = person.connected && person.type !== null && !SOCKETS.has(person.type);
  return { id: person.id, x, y, isPresent: person.connected, isVirtual, label: longest === 0 ? "" : shortened(person.id, longest) };
}

function edge(pair: Pair, from: Node, to: Node, size: Size): Edge {
  // The curve bends towards the middle, and each direction keeps to its own side, so that two edges between two nodes are seen as two.
  const [deltaX, deltaY] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(deltaX, deltaY) || 1;
  const aside = pair.isTargeted ? 12 : 26;
  const bendX = (from.x + to.x) / 2 + 0.22 * (size.width / 2 - (from.x + to.x) / 2) - (aside * deltaY) / length;
  const bendY = (from.y + to.y) / 2 + 0.22 * (size.height / 2 - (from.y + to.y) / 2) + (aside * deltaX) / length;
  const start = towards(from, bendX, bendY, from.radius + 3);
  const tip = towards(to, bendX, bendY, to.radius + 4);
  const end = towards(to, bendX, bendY, to.radius + 4 + ARROW);
  const [acrossX, acrossY] = [(end.y - tip.y) * 0.45, (tip.x - end.x) * 0.45];
  // Nearer to the owner: where many stream to one, the labels stay apart.
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

/** The two ends of a long name: names that are counted differ at their end. */
export function shortened(text: string, longest: number): string {
  if (text.length <= longest) return text;
  const kept = longest - 1;
  const head = Math.ceil(kept / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (kept - head))}`;
}
