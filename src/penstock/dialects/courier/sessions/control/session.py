"""The session of one Control v1 connection: lines in, calls of the machine, lines out.

Owns the subscriptions and followers, and the answers that wait for the journal. It must never know a transport or a clock. Answers keep
the order of their requests; deliveries go out between them. `runs.py` batches single enqueues and acks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

import msgspec

from penstock.core.clock import Now
from penstock.core.effects import Copy
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.queue.settle import Denied
from penstock.core.records import Record
from penstock.core.steps import STEP_BYTES, InputQueue, Steps
from penstock.dialects.courier.operations import payload_schemas
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue_steps, send
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, check_access
from penstock.dialects.courier.operations.redrive_and_purge import move_steps
from penstock.dialects.courier.operations.settle import ACK_STEP, SettleRequest, settle
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort
from penstock.dialects.courier.sessions.control import frames
from penstock.dialects.courier.sessions.control.reads import ReadFrame, Reads
from penstock.dialects.courier.sessions.control.runs import LineBuffer, Runs, checked, deny, error_line, ok_line
from penstock.dialects.courier.sessions.control.subscriptions import Subscriptions
from penstock.dialects.courier.sessions.live import Followers
from penstock.dialects.courier.sessions.message_session import FloodLimiter, StrikeCounter
from penstock.dialects.courier.triggers import admin
from penstock.dialects.courier.wire.delivery_frames import delivery_lines, expired_line, tap_lines
from penstock.dialects.courier.wire.envelopes import json_problem
from penstock.dialects.courier.wire.request_checks import check_request

WEIGHT_MAX = 2_000
"""Lines of one connection that are handled in one turn, where each is an enqueue or an ack: about 10 ms."""
HELLO_MAX = 64 * 1024
"""Bytes of a line while its sender is unknown: strangers get little memory."""


class ControlSession:
    """One connection that speaks Control v1."""

    def __init__(self, runtime: RuntimePort, *, token_needed: bool) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        """Set by the runtime, right after the machine accepted the connection."""
        self.answers = Answers(runtime, self)
        self._runtime = runtime
        self._machine = runtime.machine
        self.token_needed = token_needed
        """Only a `hello` with a token is accepted."""
        self.identified: Callable[[], None] = lambda: None
        """Called when the peer has shown who it is."""
        self._weight = 0
        """What the lines of this turn have cost."""
        self._lines = LineBuffer()
        self._subs = Subscriptions(runtime)
        self._strikes = StrikeCounter(runtime.machine.limits)
        self._flood_limiter = FloodLimiter(runtime.machine.limits.control_rate)
        self._queue = InputQueue(
            runtime.survey, self, self.answers, lambda line: check_request(line, self._machine.limits), self._take
        )
        self._runs = Runs(runtime, self.answers)
        self._reads = Reads(runtime, self.answers)
        self._followers = Followers(runtime, self)

    @property
    def input_bytes(self) -> int:
        return self._lines.size + self._queue.size

    def receive(self, now: Now, data: bytes) -> None:
        if self.closing is not None:
            return
        if (whole := self._lines.add(data)) is not None:
            lines = whole.split(b"\n")
            if self._queue or self._queue.is_needed(lines, len(whole)):
                self._queue.add(lines)
            else:
                self._take(now, lines, None)
        if self.closing is None and (head := self._lines.overflow(self._line_max)):
            self._too_large(head)

    def _take(self, now: Now, lines: list[bytes], problem: Refusal | None) -> None:
        """Handle whole lines; `problem` is what the checks of a large one found."""
        runs, never_long = self._runs, min(self._machine.limits.frame_max, HELLO_MAX)
        self._weight = runs.refused = 0
        rest = self._flood_limiter.rest(now)
        for number, (line, depth) in enumerate(checked(lines), 1):
            if len(line) > never_long and len(line) > self._line_max:
                runs.close(now)
                self._too_large(line)
            elif line and line != b"\r":
                rest -= 1
                self._line(now, line, problem, depth) if rest >= 0 else self._flood(now)
            if self.closing is not None:
                break
            if self._weight + frames.FRAME_WEIGHT * runs.refused > WEIGHT_MAX or self._queue.is_busy:
                self._queue.hold_back(lines[number:])
                break
        self._flood_limiter.leave(rest)
        runs.close(now)

    def _flood(self, now: Now) -> None:
        self._runs.close(now)
        self._fail(None, self._flood_limiter.refusal, close=1008)

    @property
    def _line_max(self) -> int:
        limit = self._machine.limits.frame_max
        return min(limit, HELLO_MAX) if self.token_needed else limit

    def _too_large(self, line: bytes) -> None:
        """Refuse a line by its first bytes."""
        refusal = Refusal("TooLarge", f"a line has at most {self._line_max} bytes")
        self._refuse(frames.scan_reference(line, is_whole=False), refusal, 1009 if self.token_needed else None)

    def _refuse(self, reference: frames.Reference | None, refusal: Refusal, close: int | None = None) -> None:
        """Refuse a line that is no frame. A peer that has not said who it is also loses its connection."""
        self._weight += frames.FRAME_WEIGHT
        self._runtime.input_refused("control", refusal.code)
        if self.token_needed and close is None:
            close = 1008
            if reference is None or bytes(reference.type) != b'"hello"':
                refusal = frames.UNIDENTIFIED
                self._runtime.token_refused(None, self.link.peer)
        if reference is not None and bytes(reference.type) == b'"subscribe"':
            self._subs.refused()
        self._fail(frames.name_of(reference), refusal, close)

    def _refuse_stranger(self, req_id: str | int | None, refusal: Refusal, token: str | None = None) -> None:
        self._runtime.token_refused(token, self.link.peer)
        self._fail(req_id, refusal, close=1008)

    def _fail(self, req_id: str | int | None, refusal: Refusal, close: int | None = None) -> None:
        self.answers.add(error_line(req_id, refusal))
        if close is not None and self.closing is None:
            self.closing = (close, refusal.code)

    def _reply(self, req_id: str | int | None, result: Body | Refusal) -> None:
        """Answer at once. A success is reported to a request that has an id."""
        if isinstance(result, Refusal):
            self._fail(req_id, result)
        elif req_id is not None:
            self.answers.add(ok_line(req_id, result))

    def _line(self, now: Now, line: bytes, problem: Refusal | None, depth: int) -> None:
        if problem is not None and problem.code != "InvalidJSON":  # it would cost too much to decode
            self._runs.close(now)
            self._refuse(frames.scan_reference(line, is_whole=False), problem)
            return
        try:
            frame = frames.decode_frame(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._runs.close(now)
            self._bad_line(now, line, error)
            return
        if problem is None and depth < 0 and len(line) <= STEP_BYTES:  # a larger one was checked in the queue
            problem = json_problem(line)
        if problem is not None:
            self._runs.close(now)
            self._refuse(frames.reference_of(line), problem)
            return
        if not self.token_needed and (weight := self._joins_run(now, frame, depth)):
            self._weight += weight
            return
        self._weight += frames.READ_WEIGHT if isinstance(frame, ReadFrame) else frames.FRAME_WEIGHT
        spent = self._machine.cost
        if getattr(frame, "sub_id", frame) is None:
            self._weight += len(self.link.consumers) // frames.SEARCHED
        self._runs.close(now)
        self._frame(now, frame, depth)
        self._weight += frames.READ_WEIGHT * (len(self.out[-1]) // STEP_BYTES) if self.out else 0
        if self._machine.effects:
            self._runtime.apply(now)
        self._weight += max(self._machine.cost - spent, 0)

    def _joins_run(self, now: Now, frame: frames.ControlFrame, depth: int) -> int:
        """Add a frame to the open run; returns its weight, 0 if it does not fit there. The hot path ends here."""
        if type(frame) is frames.EnqueueFrame:
            return self._runs.join_enqueue(now, self.link, frame, depth)
        if type(frame) is frames.AckFrame and self._subs.only is not None:
            return self._runs.join_ack(now, self._subs.only, frame)
        return 0

    def _bad_line(self, now: Now, line: bytes, error: Exception) -> None:
        """Refuse a line. Only one in which no request can be recognised is a strike: a gateway sends what its users wrote."""
        reference, refusal = frames.refusal_of(line, error)
        self._refuse(reference, refusal)
        if reference is None and self.closing is None:
            self.closing = self._strikes.strike(now, 1007, refusal)

    # Frames

    def _frame(self, now: Now, frame: frames.ControlFrame, depth: int) -> None:
        if type(frame) is frames.HelloFrame:
            self._hello(now, frame)
            return
        if self.token_needed:
            self._refuse_stranger(frames.req_id_of(frame), frames.UNIDENTIFIED)
            return
        if isinstance(frame, ReadFrame):
            self._reads.read(now, frame)
            return
        match frame:
            case frames.EnqueueFrame():
                self._enqueue(now, frame, 0 <= depth <= self._machine.limits.depth_max)
            case frames.SubscribeFrame():
                self._subscribe(now, frame)
            case frames.TapFrame():
                self._tap(frame)
            case frames.UnsubscribeFrame() | frames.GrantFrame():
                self._with_subscription(now, frame)
            case frames.AckFrame():
                self._ack(now, frame)
            case frames.NackFrame() | frames.ReleaseFrame() | frames.TermFrame() | frames.ExtendFrame():
                self._answer(frame.req_id, self._subs.settle(now, frame.to_request(), frame.sub_id))
            case frames.FollowFrame():
                self._follow(now, frame)
            case frames.RedriveFrame() | frames.PurgeFrame() | frames.DropFrame():
                self._queue.is_paused = self.answers.gate > self._runtime.finished
                work = move_steps(self._machine, self.link.principal, frame)
                self._queue.carry_out(work, partial(self._answer, frame.req_id))
                if self._queue.is_paused:  # until what the requests before it enqueue is there
                    self._runtime.when(self.answers.gate, False, lambda refusal: self._queue.resume())
            case _:
                self._answer(frame.req_id, self._operate(now, frame))
                return

    def _operate(self, now: Now, frame: frames.ControlFrame) -> Outcome:
        """The operations that HTTP has too."""
        machine, principal = self._machine, self.link.principal
        match frame:
            case frames.SendFrame():
                return send(machine, now, principal, frame, address=self.link.address)
            case frames.SettleFrame():
                return settle(machine, now, principal, frame)
            case frames.TriggerFrame():
                return admin.operate(machine, now, principal, frame)
            case frames.SchemaListFrame():
                return payload_schemas.listing(machine)
            case frames.SchemaValidateFrame():
                return payload_schemas.validate(machine, frame.env)
            case _:
                return Result({})

    def _answer(self, req_id: str | int | None, outcome: Outcome) -> None:
        if isinstance(outcome, Refusal):
            self._fail(req_id, outcome)
        elif isinstance(outcome, Denied):
            deny(self.answers, req_id, outcome)
        elif req_id is None:
            self.answers.gate = max(self.answers.gate, outcome.gate)
        else:
            self.answers.after(
                outcome.gate,
                lambda refusal: ok_line(req_id, outcome.value()) if refusal is None else error_line(req_id, refusal),
                fresh=outcome.fresh,
            )

    def _hello(self, now: Now, frame: frames.HelloFrame) -> None:
        req_id = "hello" if frame.req_id is None else frame.req_id
        if frame.version != "v1":
            self._fail(req_id, Refusal("Unsupported", f"version `{frame.version}` is not `v1`"), close=1003)
            return
        if frame.token is not None:
            principal = self._runtime.authenticate(frame.token)
            if principal is None:
                self._refuse_stranger(req_id, Refusal("Unauthorized", "the token is not known"), frame.token)
                return
            self.link.principal, self.link.agent = principal, None
            self.token_needed = False
            self.identified()
        elif self.token_needed:
            self._refuse_stranger(req_id, Refusal("Unauthorized", "a token is needed"))
            return
        if (foreign := self.link.claim(frame.agent, self._runtime.is_agent_taken)) is not None:
            self._fail(req_id, foreign, close=1008)
            return
        self.answers.add(ok_line(req_id, frames.hello_result(self._runtime.health(now)) | self._greeting(frame)))

    def _greeting(self, frame: frames.HelloFrame) -> dict[str, object]:
        return {}  # what else the answer says

    def _enqueue(self, now: Now, frame: frames.EnqueueFrame, is_shallow: bool) -> None:
        raw, req_id = bytes(frame.env), "enqueue" if frame.req_id is None else frame.req_id
        request = EnqueueRequest(frame.to, delay_ms=frame.delay_ms, deliver_at=frame.deliver_at)
        link, is_large = self.link, len(raw) > STEP_BYTES
        known = is_large or is_shallow
        steps = partial(enqueue_steps, self._machine, assign=False, address=link.address, is_checked=known)

        def work() -> Generator[None, Now, Outcome]:
            if raw[:1] == b"[":  # of a large line in a turn of its own
                request.envelopes = msgspec.json.decode(raw, type=list[msgspec.Raw])
            else:
                request.envelope = frame.env
            return (yield from steps(now, link.principal, request))

        if is_large:
            self._queue.carry_out(work(), partial(self._answer, req_id))
        else:
            self._answer(req_id, Steps(work()).all(now))

    def _subscribe(self, now: Now, frame: frames.SubscribeFrame) -> None:
        consumer = self._subs.open(now, self.link, frame, frame.sub_id in self._followers)
        if isinstance(consumer, Refusal):
            self._subs.refused()
            self._fail(frame.req_id, consumer)
            return
        self._reply(frame.req_id, {"subId": consumer.label})
        if (credit := frame.credit or frame.auto) and (refused := self._machine.grant(now, consumer, credit)):
            self._fail(frame.req_id, refused)

    def _tap(self, frame: frames.TapFrame) -> None:
        machine, who = self._machine, self.link.principal
        refused = check_access(machine, who, "read", frame.stream)
        refused = refused or machine.tap(self.link, who.to_channel(frame.stream))
        self._reply(frame.req_id, refused or {"stream": frame.stream})

    def _with_subscription(self, now: Now, frame: frames.UnsubscribeFrame | frames.GrantFrame) -> None:
        if frame.sub_id is not None and frame.sub_id in self._followers:
            self._with_follower(frame, frame.sub_id)
            return
        consumer = self._subs.find(frame.sub_id)
        if isinstance(consumer, Refusal):
            self._fail(frame.req_id, consumer)
        elif isinstance(frame, frames.GrantFrame):
            refusal = self._machine.grant(now, consumer, frame.n)
            self._reply(frame.req_id, refusal or {"credit": consumer.credit})
        else:
            self._subs.forget(consumer)
            self._machine.unsubscribe(now, consumer)
            self._reply(frame.req_id, {"subId": consumer.label})

    def _follow(self, now: Now, frame: frames.FollowFrame) -> None:
        label = self._followers.open(frame, frame.sub_id in self._subs)
        if isinstance(label, Refusal):
            self._fail(frame.req_id, label)
            return
        self._reply(frame.req_id, {"subId": label})
        self._followers.start(now, label)

    def _with_follower(self, frame: frames.UnsubscribeFrame | frames.GrantFrame, label: str) -> None:
        if isinstance(frame, frames.GrantFrame):
            credit = self._followers.grant(label, frame.n)
            self._reply(frame.req_id, credit if isinstance(credit, Refusal) else {"credit": credit})
        else:
            self._followers.close(label)
            self._reply(frame.req_id, {"subId": label})

    def _ack(self, now: Now, frame: frames.AckFrame) -> None:
        ids = frame.id if isinstance(frame.id, list) else [frame.id]
        if len(ids) > (limit := self._machine.limits.batch_max):
            self._fail(frame.req_id, Refusal("InvalidRequest", f"an array has at most {limit} ids"))
            return
        if frame.lease_id is not None and len(ids) == 1:
            request = SettleRequest(ids[0], "ack", frame.lease_id)
            self._answer(frame.req_id, self._subs.settle(now, request, frame.sub_id))
            return
        denied = self._subs.ack(now, ids, frame.sub_id)  # at once: a peer may close right after its acks
        self._weight += len(ids) + frames.FRAME_WEIGHT * min(len(denied), ACK_STEP)
        if not denied and frame.req_id is not None:
            self._answer(frame.req_id, Result({"id": frame.id}, self._machine.commit_log.gate))
        refusing = self._deny_all(frame.req_id, denied)
        if len(denied) > ACK_STEP:
            self._queue.carry_out(refusing, lambda done: None)
        else:
            Steps(refusing).all(now)

    def _deny_all(self, req_id: str | int | None, denied: list[Denied]) -> Generator[None, Now, None]:
        for number, one in enumerate(denied, 1):
            deny(self.answers, req_id, one)
            if number % ACK_STEP == 0:
                yield

    # What the runtime calls

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        if consumer.pull:
            self._reads.pulled(now, consumer, records)
        else:
            self.out.append(delivery_lines(consumer.tag, self._machine.boot, now, consumer, records))

    def tapped(self, copy: Copy) -> None:
        """Copy what was enqueued to a peer that taps the stream."""
        self.out.append(tap_lines(copy))

    def expired(self, consumer: Consumer, record: Record, lease_id: str) -> None:
        self.out.append(expired_line(consumer, record, lease_id))

    def release(self) -> None:
        for part in (self.answers, self._queue, self._followers):
            part.release()

    def drain(self, refusal: Refusal) -> None:
        self._fail(None, refusal, close=refusal.kind.close)
