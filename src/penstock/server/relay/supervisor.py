"""The relay beside the server: a process of its own, started with the doors and watched over, and what it tells as rows.

The server keeps its registrations, by the hashes of their topics, and gives them back when it starts again: after a restart of the
server from the journal, after the process alone died from memory. What it tells beside them are observations: they gate nothing.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.records import Entry
from penstock.core.relay.limits import MIB, RelayLimits
from penstock.core.relay.topic import Remembered
from penstock.core.scopes import Principal
from penstock.dialects.streamservice.registration_rows import DOOR, RelayMemory, register_entry
from penstock.server.config.relay_sections import PUB, RelaySection
from penstock.server.engine.runtime import Runtime
from penstock.server.files.private import write_private
from penstock.server.logging import logs
from penstock.server.relay.reports import (
    Asked,
    Counted,
    Expired,
    Figures,
    Listening,
    Passed,
    Ready,
    Registered,
    Stopped,
    Told,
    Unable,
    decode,
)

if TYPE_CHECKING:
    from penstock.server.relay.websocket_hub import RelayHub, RelayPlan

READY_S = 20.0
"""How long it may take to open its sockets on a busy machine."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0
STABLE_S = 30.0
"""A run this long was a good one: the next failure is tried again soon."""
STOP_S = 5.0
"""How long it may take to drain when the server stops."""
TURN = 256
"""Things told after which others on the loop have their turn: two milliseconds."""
BATCH_MAX = 128 * MIB
"""Bytes of one report."""
KEY_FILE = "publisher.key"
LOCAL_SIGNER = "local"
"""What the holder of the key in the run directory is called."""

_encode = msgspec.json.encode


class RelayError(Exception):
    """The relay cannot run; the message says what to do."""


class TopicFigures(msgspec.Struct):
    """What one topic did, for metrics and the console."""

    messages: int = 0
    bytes: int = 0
    subscribers: int = 0
    waiting: int = 0
    held: int = 0


class Relaying:
    """Runs the relay of one server."""

    def __init__(
        self, section: RelaySection, run_dir: Path, memory: RelayMemory, runtime: Runtime, *, keeps_rows: bool
    ) -> None:
        self._section = section
        self._memory = memory
        self._runtime = runtime
        self._keeps_rows = keeps_rows and section.journal != "off"
        self._limits = msgspec.convert(
            {name: getattr(section, name) for name in RelayLimits.__struct_fields__}, RelayLimits
        )
        self._pub = section.pub
        self._pull = section.pull or f"ipc://{run_dir / 'push.sock'}"
        self.inner = f"ipc://{run_dir / 'relay.sock'}"
        """Where the server itself subscribes."""
        self._key_file = run_dir / KEY_FILE
        self._signers = dict(section.signers)
        self._curve: Any = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self.is_up = False
        self.restarts = 0
        self.figures: Figures | None = None
        self.topics: dict[str, TopicFigures] = {}
        self.stopped: Stopped | None = None
        self.hub: RelayHub | None = None
        """Who carries token streams to browsers, once one of them came."""

    async def start(self) -> Ready:
        """Open its sockets; returns where they are."""
        curve = self._section.curve
        if curve is not None:
            self._curve = curve_keys(Path(curve.secret), curve.allowed)
        self._signers.setdefault(LOCAL_SIGNER, local_key(self._key_file))
        self._task = asyncio.get_running_loop().create_task(self._keep_running())
        done, _ = await asyncio.wait(
            (self._ready, self._task), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self._ready in done and self._ready.exception() is None:
            return self._ready.result()
        await self.stop()
        if self._ready.done():
            return self._ready.result()
        raise RelayError("the relay's process did not open its sockets; the log says more")

    async def stop(self) -> None:
        """Let it pass on what it has, then end it."""
        self._is_stopping = True
        if self.hub is not None:
            self.hub.close()
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, STOP_S)
            except (TimeoutError, RelayError):
                pass

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_FIRST_S
        while not self._is_stopping:
            started = loop.time()
            try:
                code = await self._run()
            except OSError as error:  # no process to be had: as good as one that failed
                logs.error("relay.unable", reason=str(error))
                code = -1
            self.is_up = False
            if self._is_stopping or (code != 0 and self._ready.done() and self._ready.exception()):
                return
            if loop.time() - started >= STABLE_S:
                pause_s = BACKOFF_FIRST_S
            self.restarts += 1
            logs.warning("relay.failed", exit=code, again_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_MAX_S)

    def _job(self) -> bytes:
        from penstock.server.relay.process import Task

        section = self._section
        remembered = self._memory.valid(self._runtime.scheduler.now().wall_us)
        known = {each.hash for each in remembered}  # nobody will tell of the others any more
        self.topics = {topic: figures for topic, figures in self.topics.items() if topic in known}
        task = Task(
            pub=self._pub,
            pull=self._pull,
            also_pub=self.inner,
            limits=self._limits,
            signers=self._signers,
            curve=self._curve,
            journal=section.journal,
            check_links=section.check_links,
            remembered=remembered,
            is_default=self._pub == PUB and not self._ready.done(),
        )
        return _encode(task) + b"\n"

    async def _run(self) -> int:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # what lies in the working directory is none of our modules
            "-m",
            "penstock.server.relay.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server, which tells it in its own time
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(self._job())
            await process.stdin.drain()
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                if size > BATCH_MAX:
                    break
                for number, told in enumerate(decode(await process.stdout.readexactly(size)), 1):
                    self._hear(told)
                    if not number % TURN:
                        await asyncio.sleep(0)
                self._runtime.schedule_turn()
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            pass  # it ended; its exit code says how
        if process.returncode is None and not self._is_stopping:
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
        return await process.wait()

    # What it tells

    def _hear(self, told: Told) -> None:
        """One thing that the relay tells."""
        match told:
            case Ready():
                if self._pub == PUB != told.pub:
                    logs.warning("relay.moved", wanted=PUB, pub=told.pub, note="the port is taken")
                # The same addresses after a restart: clients come back to them by themselves.
                self._pub, self._pull, self.is_up = told.pub, told.pull, True
                if not self._ready.done():
                    self._ready.set_result(told)
                logs.event("relay.ready", pub=told.pub, pull=told.pull, restarts=self.restarts)
            case Unable():
                if self._ready.done():
                    logs.error("relay.unable", reason=told.reason)
                else:
                    self._ready.set_exception(RelayError(told.reason))
            case Figures():
                self.figures = told
            case Stopped():
                self.stopped = told
                logs.event("relay.stop", undelivered=told.undelivered, topics=told.topics)
            case _:
                self._note(told)

    def _note(self, told: Registered | Expired | Counted | Listening | Asked | Passed) -> None:
        """A row about a topic."""
        match told:
            case Registered():
                if told.had_milliseconds:
                    logs.warning("relay.milliseconds", topic=told.topic, note="`exp` is in seconds")
                self.topics.setdefault(told.topic, TopicFigures())
                self._fact(register_entry(Remembered(told.topic, told.signer, told.expires_s * 1_000_000)))
            case Expired():
                self.topics.pop(told.topic, None)
                self._fact(Entry(DOOR, "expire", told.topic, reason=told.reason, fresh=False))
            case Counted():
                figures = self.topics.setdefault(told.topic, TopicFigures())
                figures.messages += told.chunks
                figures.bytes += told.bytes
                figures.subscribers, figures.waiting, figures.held = told.subscribers, told.waiting, told.held
                self._observe(_counts(told))
            case Listening():
                event = "subscribe" if told.on else "unsubscribe"
                self._observe(Entry(DOOR, event, told.topic, recipients=told.subscribers))
            case Asked():
                meta = _encode({"found": told.found, "messages": told.messages}).decode()
                self._observe(Entry(DOOR, "resume", told.topic, meta=meta))
            case Passed():
                self._observe(
                    Entry(
                        DOOR,
                        "chunk",
                        told.topic,
                        told.seq,
                        kind=told.format,
                        size=len(told.body),
                        recipients=told.subscribers,
                        meta='{"held":true}' if told.held else None,
                        body=told.body,
                    )
                )

    def _fact(self, entry: Entry) -> None:
        self._memory.apply(entry)
        if self._keeps_rows:
            self._runtime.machine.facts.append(entry)

    def _observe(self, entry: Entry) -> None:
        self._memory.apply(entry)
        if self._keeps_rows:
            self._runtime.machine.observe_entry(entry)

    def listen(self, principal: Principal, peer: str) -> RelayPlan:
        """A WebSocket that listens to a token stream."""
        from penstock.server.relay.websocket_hub import RelayHub, RelayPlan

        if self.hub is None:
            self.hub = RelayHub(self._runtime, self.inner)
        return RelayPlan(self._runtime, self.hub, principal, peer)

    def health(self) -> dict[str, Any]:
        """What GET /health says of it."""
        figures = self.figures
        return {
            "ok": self.is_up,
            "topics": 0 if figures is None else figures.topics + figures.remembered,
            "restarts": self.restarts,
        }


def listen(relay: Relaying | None, principal: Principal, peer: str) -> RelayPlan | Refusal:
    """A WebSocket that listens to a token stream, where a relay runs."""
    if relay is None:
        hint = "start the server with `penstock up`, without --no-relay"
        return Refusal("UnknownRoute", "no relay runs here", hint=hint)
    return relay.listen(principal, peer)


def _counts(told: Counted) -> Entry:
    meta = _encode(
        {
            "chunks": told.chunks,
            "sent": told.sent,
            "replayed": told.replayed,
            "lost": told.lost,
            "waiting": told.waiting,
        }
    )
    return Entry(
        DOOR,
        "chunk_counts",
        told.topic,
        told.seq,
        kind=told.format,
        size=told.bytes,
        recipients=told.subscribers,
        meta=meta.decode(),
    )


def local_key(path: Path, entropy: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """The public key of whoever reads the run directory: a publisher on this machine needs no setting up."""
    from penstock.dialects.streamservice.signatures import SigningKey

    try:
        seed = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        seed = entropy(32)
        write_private(path, seed.hex().encode() + b"\n")
    except ValueError as error:
        raise RelayError(f"`{path}` holds no key; remove it, and a new one is made") from error
    return SigningKey(seed).public.hex()


def curve_keys(path: Path, allowed: tuple[str, ...]) -> Any:
    """A server's keys from its file of secret keys."""
    from zmq.auth import load_certificate

    from penstock.transports.zeromq import CurveKeys

    try:
        public, secret = load_certificate(os.fspath(path))
    except (OSError, ValueError) as error:
        raise RelayError(f"`{path}` holds no CURVE keys: {error}") from error
    if secret is None:
        raise RelayError(f"`{path}` holds no secret key; name the file that ends in `.key_secret`")
    return CurveKeys(public.decode(), secret.decode(), allowed)
