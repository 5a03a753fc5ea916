// The smallest relay that a load of `penstock bench fanout` can join: it knows members and streams, and forwards frames.
//
// It checks no token, keeps no journal and bounds no buffer. One send per frame and recipient, as most relays are written;
// with --cork everything that one turn of the loop sends to a connection leaves in one write.

"use strict";

const { WebSocketServer } = require("ws");

const HASH = 0x23;
const BINARY = { binary: true };
const corked = process.argv.includes("--cork");
const spaces = new Map();

function spaceOf(id) {
  if (!spaces.has(id)) spaces.set(id, { members: new Map(), streams: new Map(), opened: 0 });
  return spaces.get(id);
}

const waiting = new Set();

function uncork() {
  for (const tcp of waiting) tcp.uncork();
  waiting.clear();
}

function send(member, data, options) {
  if (corked && !waiting.has(member._socket)) {
    if (waiting.size === 0) setImmediate(uncork);
    member._socket.cork();
    waiting.add(member._socket);
  }
  member.send(data, options);
}

function relay(space, frame) {
  const stream = space.streams.get(frame.toString("latin1", 1, frame.indexOf(HASH, 1)));
  if (stream === undefined) return;
  if (stream.target === null) {
    for (const member of space.members.values()) send(member, frame, BINARY);
    return;
  }
  for (const name of stream.target) {
    const member = space.members.get(name);
    if (member !== undefined) send(member, frame, BINARY);
  }
}

function envelope(fields) {
  return JSON.stringify({ protocol: "mew/v0.4", from: "gateway", ...fields });
}

function open(space, from, request) {
  const target = request.payload.target ?? null;
  const id = `stream-${++space.opened}`;
  space.streams.set(id, { owner: from, target });
  const payload = { stream_id: id, encoding: "binary", ...(target === null ? {} : { target }) };
  const text = envelope({ kind: "stream/open", to: [from], correlation_id: [request.id], payload });
  for (const member of space.members.values()) send(member, text);
}

const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });

server.on("connection", (socket) => {
  let space = null;
  let name = null;
  socket.on("message", (data) => {
    if (data[0] === HASH) {
      if (space !== null) relay(space, data);
      return;
    }
    const message = JSON.parse(data.toString());
    if (message.type === "join") {
      space = spaceOf(message.space);
      name = message.participantId;
      space.members.set(name, socket);
      send(socket, envelope({ kind: "system/welcome", to: [name], payload: { you: { id: name }, participants: [] } }));
    } else if (message.kind === "stream/request") {
      open(space, name, message);
    } else if (message.kind === "stream/close") {
      space.streams.delete(message.payload.stream_id);
    }
  });
  socket.on("close", () => {
    if (space !== null && space.members.get(name) === socket) space.members.delete(name);
  });
});

server.on("listening", () => console.log(JSON.stringify({ port: server.address().port })));
