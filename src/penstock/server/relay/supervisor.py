"""The parent of the relay's process: starts and restarts it, and turns its reports into rows of the journal.

The server keeps the registrations, by the hashes of their topics, and passes them to each new run of the relay: from the journal after
a restart of the server, from memory after a restart of the relay alone. All other reports are observations; no message waits for them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.records import Entry
from penstock.core.relay.bounds import MIB, RelayLimits
from penstock.core.relay.topic import Remembered
from penstock.core.scopes import Principal
from penstock.dialects.streamservice.relay_memory import DOOR, RelayMemory, register_entry
from penstock.server.config.sections import PUB, RelaySection
from penstock.server.engine.child_supervisor import EXIT_NOT_STARTED, AfterExit, Backoff, ChildSupervisor
from penstock.server.engine.runtime import Runtime
from penstock.server.files.secret_files import write_private
from penstock.server.logging import logs
from penstock.server.relay import reports

if TYPE_CHECKING:
    from penstock.server.relay.process import RelayTask
    from penstock.server.relay.websocket_hub import RelayHub, RelayPlan

MODULE = "penstock.server.relay.process"
READY_S = 20.0
"""How long the relay may take to bind its sockets on a busy machine."""
BACKOFF = Backoff(first_s=0.1, max_s=10.0, stable_s=30.0)
STOP_S = 5.0
"""How long the relay may take to drain when the server stops."""
TURN = 32
"""Reports after which the loop runs other work: about a quarter of a millisecond."""
BATCH_MAX = 128 * MIB
"""Bytes of one report."""
KEY_FILE = "publisher.key"
LOCAL_SIGNER = "local"
"""Name of the signer whose key is in the run directory."""

_encode = msgspec.json.encode


class RelayError(Exception):
    """The relay cannot run; the message says what to do."""


class TopicFigures(msgspec.Struct):
    """Figures of one topic, for metrics and the console."""

    messages: int = 0
    bytes: int = 0
    subscribers: int = 0
    waiting: int = 0
    held: int = 0


class RelaySupervisor:
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
        """The endpoint that the server itself subscribes to."""
        self._key_file = run_dir / KEY_FILE
        self._signers = dict(section.signers)
        self._curve: Any = None
        self._child = ChildSupervisor(MODULE, stdout="reports")
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[reports.RelayReady] = asyncio.get_running_loop().create_future()
        self._undecided: dict[int, list[Entry]] = {}
        """Facts in batches that the journal has not decided, by batch."""
        self._refused: list[Entry] = []
        """Facts that the journal refused; proposed again with each report until it takes them."""
        self.facts_dropped = 0
        self.is_up = False
        self.last_failure: tuple[int, str] | None = None
        """When the relay ended last without being asked to, and how."""
        self.figures: reports.RelayTotals | None = None
        self.topics: dict[str, TopicFigures] = {}
        self.hub: RelayHub | None = None
        """Sends token streams to browsers; made for the first one."""

    async def start(self) -> reports.RelayReady:
        """Start the relay and return the addresses of its sockets."""
        self._runtime.turn_listeners.append(self)
        curve = self._section.curve
        if curve is not None:
            self._curve = curve_keys(Path(curve.secret), curve.allowed)
        self._signers.setdefault(LOCAL_SIGNER, local_key(self._key_file))
        self._task = asyncio.get_running_loop().create_task(self._child.keep_running(BACKOFF, self._run, self._exited))
        done, _ = await asyncio.wait((self._ready, self._task), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if self._ready in done and self._ready.exception() is None:
            return self._ready.result()
        await self.stop()
        if self._ready.done():
            return self._ready.result()
        raise RelayError("the relay did not open its sockets; see the log")

    @property
    def restarts(self) -> int:
        return self._child.restarts

    async def stop(self) -> None:
        """Let the relay send what it holds, then end it."""
        if self.hub is not None:
            self.hub.close()
        await self._child.stop(STOP_S)
        if self._task is not None:
            with suppress(TimeoutError, RelayError):
                await asyncio.wait_for(self._task, STOP_S)

    async def _run(self) -> int:
        code = await self._child.run(self._relay_task(), self._read)
        self.is_up = False
        return code

    async def _exited(self, code: int, pause_s: float) -> AfterExit:
        if code == EXIT_NOT_STARTED:
            logs.error("relay.unable", reason=self._child.start_error)
        if code != 0 and self._ready.done() and self._ready.exception():
            return "end"  # `start` raises the reason
        reason = self._child.start_error or f"the process of the relay exited with code {code}"
        self.last_failure = (self._runtime.scheduler.now().wall_us, reason)
        logs.warning("relay.failed", exit=code, again_in_s=pause_s)
        return "back_off"

    def _relay_task(self) -> RelayTask:
        from penstock.server.relay.process import RelayTask  # loads ZeroMQ

        section = self._section
        now = self._runtime.scheduler.now()
        remembered = self._memory.valid(now.wall_us)
        known = {each.hash for each in remembered}  # the new run reports no other topic
        self.topics = {topic: figures for topic, figures in self.topics.items() if topic in known}
        return RelayTask(
            pub=self._pub,
            pull=self._pull,
            also_pub=self.inner,
            limits=self._limits,
            signers=self._signers,
            curve=self._curve,
            journal=section.journal,
            check_links=section.check_links,
            remembered=remembered,
            nonces=tuple(self._memory.used_nonces(now.wall_us)),
            is_default=self._pub == PUB and not self._ready.done(),
        )

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        """Take reports until the relay closes its stdout; its exit code says how it ended."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            while (size := int.from_bytes(await stdout.readexactly(4), "big")) <= BATCH_MAX:
                for number, report in enumerate(reports.decode(await stdout.readexactly(size)), 1):
                    if isinstance(report, reports.ProcessReport):
                        self._on_process_report(report)
                    else:
                        self._on_topic_report(report)
                    if not number % TURN:
                        await asyncio.sleep(0)
                self._runtime.schedule_turn()

    def _on_process_report(self, report: reports.ProcessReport) -> None:
        match report:
            case reports.RelayReady():
                if self._pub == PUB != report.pub:
                    logs.warning("relay.moved", wanted=PUB, pub=report.pub, note="the port is in use")
                # A restart binds the same addresses, so clients reconnect on their own.
                self._pub, self._pull, self.is_up = report.pub, report.pull, True
                if not self._ready.done():
                    self._ready.set_result(report)
                logs.event("relay.ready", pub=report.pub, pull=report.pull, restarts=self.restarts)
            case reports.BindFailed():
                if self._ready.done():
                    logs.error("relay.unable", reason=report.reason)
                else:
                    self._ready.set_exception(RelayError(report.reason))
            case reports.RelayTotals():
                before, self.figures = self.figures or report, report
                self._propose_again()
                for reason, peers in report.peers_cut.items():
                    if peers > before.peers_cut.get(reason, 0):
                        logs.warning("relay.peer_cut", peers=peers, reason=reason)
                if report.reopened > before.reopened:
                    logs.warning("relay.reopened", times=report.reopened, reason="too much memory")
            case reports.RelayStopped():
                logs.event("relay.stop", undelivered=report.undelivered, topics=report.topics)

    def _on_topic_report(self, report: reports.TopicReport) -> None:
        """Turn a report into a row of the journal."""
        match report:
            case reports.TopicRegistered():
                if report.had_milliseconds:
                    logs.warning("relay.milliseconds", topic=report.topic, note="`exp` is in seconds")
                self.topics.setdefault(report.topic, TopicFigures())
                known = Remembered(report.topic, report.signer, report.expires_s * 1_000_000)
                self._fact(register_entry(known, report.nonce, report.timestamp_ms))
            case reports.TopicExpired():
                self.topics.pop(report.topic, None)
                self._fact(Entry(DOOR, "expire", report.topic, reason=report.reason, fresh=False))
            case reports.TopicCounts():
                figures = self.topics.setdefault(report.topic, TopicFigures())
                figures.messages += report.chunks
                figures.bytes += report.bytes
                figures.subscribers, figures.waiting, figures.held = (report.subscribers, report.waiting, report.held)
                self._observe(_count_entry(report))
            case reports.SubscribersChanged():
                event = "subscribe" if report.on else "unsubscribe"
                self._observe(Entry(DOOR, event, report.topic, recipients=report.subscribers))
            case reports.ResumeRequested():
                meta = _encode({"found": report.found, "messages": report.messages}).decode()
                self._observe(Entry(DOOR, "resume", report.topic, meta=meta))
            case reports.MessageRelayed():
                self._observe(_message_entry(report))

    def _fact(self, entry: Entry) -> None:
        self._memory.apply(entry)
        self._propose(entry)

    def _propose(self, entry: Entry) -> None:
        if self._keeps_rows:
            log = self._runtime.commit_log
            log.facts.append(entry)
            self._undecided.setdefault(log.gate, []).append(entry)

    def turn(self) -> None:
        """A turn ends; the facts are in the commit log already."""

    def decided(self, now: Now, no: int, fresh: Refusal | None, whole: Refusal | None) -> None:
        """Keep the facts that the journal refused: the relay has acted on them."""
        refused = [entry for entry in self._undecided.pop(no, ()) if whole is not None or (fresh and entry.fresh)]
        room = self._limits.facts_max - len(self._refused)
        self._refused += refused[:room]
        self.facts_dropped += max(len(refused) - room, 0)

    def _propose_again(self) -> None:
        """Propose refused facts again, without registrations that ended since."""
        refused, self._refused = self._refused, []
        for entry in refused:
            if entry.event != "register" or entry.channel in self._memory.registrations:
                self._propose(entry)
        if refused:
            self._runtime.schedule_turn()

    def _observe(self, entry: Entry) -> None:
        self._memory.apply(entry)
        if self._keeps_rows:
            self._runtime.commit_log.observe_entry(entry)

    def listen(self, principal: Principal, peer: str) -> RelayPlan:
        """Admit a WebSocket that follows a token stream."""
        from penstock.server.relay.websocket_hub import RelayHub, RelayPlan

        if self.hub is None:
            self.hub = RelayHub(self._runtime, self.inner)
        return RelayPlan(self._runtime, self.hub, principal, peer)

    def health(self) -> dict[str, Any]:
        """The relay's part of `GET /health`."""
        figures = self.figures
        return {
            "ok": self.is_up,
            "topics": 0 if figures is None else figures.topics + figures.remembered,
            "restarts": self.restarts,
        }


def _count_entry(report: reports.TopicCounts) -> Entry:
    names = ("chunks", "sent", "replayed", "lost", "waiting")
    return Entry(
        DOOR,
        "chunk_counts",
        report.topic,
        report.seq,
        kind=report.format,
        size=report.bytes,
        recipients=report.subscribers,
        meta=_encode({name: getattr(report, name) for name in names}).decode(),
    )


def _message_entry(report: reports.MessageRelayed) -> Entry:
    return Entry(
        DOOR,
        "chunk",
        report.topic,
        report.seq,
        kind=report.format,
        size=len(report.body),
        recipients=report.subscribers,
        meta='{"held":true}' if report.held else None,
        body=report.body,
    )


def local_key(path: Path, entropy: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """The public key of publishers that can read the run directory, so that they need no set-up."""
    from penstock.dialects.streamservice.signatures import SigningKey

    try:
        seed = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        seed = entropy(32)
        write_private(path, seed.hex().encode() + b"\n")
    except ValueError as error:
        raise RelayError(f"`{path}` holds no key; remove it to have a new one made") from error
    return SigningKey(seed).public.hex()


def curve_keys(path: Path, allowed: tuple[str, ...]) -> Any:
    """Read the CURVE keys of the server from its secret key file."""
    from zmq.auth import load_certificate

    from penstock.transports.zeromq import CurveKeys

    try:
        public, secret = load_certificate(os.fspath(path))
    except (OSError, ValueError) as error:
        raise RelayError(f"`{path}` holds no CURVE keys: {error}") from error
    if secret is None:
        raise RelayError(f"`{path}` holds no secret key; name the file that ends in `.key_secret`")
    return CurveKeys(public.decode(), secret.decode(), allowed)
