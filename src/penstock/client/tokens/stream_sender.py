"""Sends a publisher's messages to the relay: registrations first, then messages in order; receives cancellations.

Owns the sockets and the timers of one stream; the composer makes the messages. Invariants: nothing is sent before the topic is registered
over the same connection; messages leave in order. After a reconnect the topic is registered again and recent messages are sent again,
because the relay may have restarted. A registration is renewed at half of its lifetime.
"""

from __future__ import annotations

import asyncio
import secrets
import time

import zmq

from penstock.client.tokens.zmq_socket import LINGER_MS, Curve, ZmqSocket, monotonic_us
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.chain import ControlChannel
from penstock.dialects.streamservice.compose_stream import Composer, Parts
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Payload, StreamFailure
from penstock.dialects.streamservice.signatures import SigningKey, read_refused, sign_registration

NONCE_SIZE = 16
DROPPED = "publisher dropped without terminal frame"


class StreamSender:
    """The sockets of one stream."""

    def __init__(
        self,
        composer: Composer,
        keys: StreamKeys,
        signer: SigningKey,
        *,
        push: str,
        pub: str | None,
        curve: Curve | None,
        sub: str,
        lifetime_s: float,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.composer = composer
        self.is_closed = False
        self.cancelled = asyncio.Event()
        self.refusal: Refusal | None = None
        """Why the relay refused the registration; known only with the relay's endpoint for readers."""
        self._nonce = b""
        self._channel = ControlChannel(keys)
        self._topics = (keys.topic, keys.ctrl_topic) if pub is not None else (keys.topic,)
        self._signer = signer
        self._sub = sub
        self._lifetime_s = lifetime_s
        self._registrations: list[Parts] = []
        """Registrations that are not sent yet."""
        self._renew_us = 0
        self._is_linked = False
        self._was_linked = False
        self._linked = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._socket = ZmqSocket(zmq.PUSH, push, curve, moved=self.pump, linked=self._link)
        self._control_socket: ZmqSocket | None = None
        if pub is not None:
            self._control_socket = ZmqSocket(zmq.XSUB, pub, curve, arrived=self._control_received)
            self._control_socket.send((b"\x01" + self._channel.topic,))

    async def linked(self, timeout: float) -> None:
        """Wait until the relay is connected."""
        try:
            async with asyncio.timeout(timeout):
                await self._linked.wait()
        except TimeoutError:
            hint = "check that the relay runs, and the CURVE keys"
            raise PenstockError(Refusal("Unreachable", "the relay does not answer", hint=hint)) from None

    # Sending

    def add(self, payload: Payload) -> bool:
        """Add a payload; false after the end of the stream."""
        now_us = monotonic_us()
        is_taken = self.composer.add(now_us, payload)
        if self.composer.unsent:
            self.pump()
        self._arm(now_us)
        return is_taken

    def pump(self) -> None:
        """Send as much as the socket accepts."""
        if self.is_closed or not self._is_linked:
            return
        while self._registrations:
            if not self._socket.send(self._registrations[0]):
                return
            self._registrations.pop(0)
        composer, before = self.composer, self.composer.unsent
        while (parts := composer.next()) is not None and self._socket.send(parts):
            composer.sent()
        if composer.unsent < before and self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def room(self, unsent_max: int | None, timeout: float) -> bool:
        """Wait until at most `unsent_max` messages are left, or until there is room; false after `timeout`."""
        composer = self.composer
        try:
            async with asyncio.timeout(timeout):
                while composer.is_full if unsent_max is None else composer.unsent > unsent_max:
                    if self.is_closed or self.refusal is not None:
                        return False
                    if self._changed is None or self._changed.done():
                        self._changed = self.loop.create_future()
                    await asyncio.shield(self._changed)
        except TimeoutError:
            return False
        return True

    def _link(self, is_up: bool) -> None:
        self._is_linked = is_up
        if not is_up:
            return
        if self._was_linked:
            self.composer.again()
        self._was_linked = True
        self._register()
        self._linked.set()
        self.pump()
        self._arm(monotonic_us())

    def _register(self) -> None:
        """Sign again: a relay accepts each registration once."""
        now_ms = time.time_ns() // 1_000_000
        exp_s = int(now_ms / 1000 + self._lifetime_s) + 1
        nonces = [secrets.token_bytes(NONCE_SIZE) for _ in self._topics]
        self._nonce = nonces[-1]
        self._registrations = [
            (sign_registration(topic, exp_s, self._signer, nonce=nonce, now_ms=now_ms, sub=self._sub),)
            for topic, nonce in zip(self._topics, nonces, strict=True)
        ]
        self._renew_us = monotonic_us() + int(self._lifetime_s * 500_000)

    # Time

    def _arm(self, now_us: int) -> None:
        if self.is_closed:
            return
        due_us = self.composer.due_us()
        if self._renew_us and not self.composer.is_over:
            due_us = self._renew_us if due_us is None else min(due_us, self._renew_us)
        if due_us is None:
            return
        when = self.loop.time() + max(due_us - now_us, 0) / 1_000_000
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_us = monotonic_us()
        self.composer.step(now_us)
        if self._renew_us and now_us >= self._renew_us and self._is_linked:
            self._register()
        elif now_us >= self._renew_us:
            self._renew_us = now_us + 1_000_000
        self.pump()
        self._arm(now_us)

    # Control messages of readers

    def _control_received(self, burst: list[list[bytes]]) -> None:
        for parts in burst:
            if len(parts) == 2:
                # The relay refused the registration; nothing that follows reaches a reader.
                self.refusal = read_refused(parts[1], self._nonce) or self.refusal
                if self.refusal is not None and self._changed is not None and not self._changed.done():
                    self._changed.set_result(None)
            else:
                self.take_control(parts)

    def take_control(self, parts: list[bytes]) -> bool:
        """Process a message of the control channel; false when it is not valid."""
        word = self._channel.open(parts)
        if word == "cancel" and not self.composer.is_over:
            self.cancelled.set()
            self.add(StreamFailure("the reader cancelled the stream", "cancelled", "", self.composer.stream_id))
        return word is not None

    def control_parts(self, message: bytes) -> list[bytes]:
        """Split a control message that arrived on another channel."""
        return [self._channel.topic, message[:-16], message[-16:]]

    # The end

    def drop(self) -> None:
        """End the stream of a garbage-collected publisher with an error, and close."""
        if self.is_closed:
            return
        if not self.composer.is_over:
            self.composer.add(monotonic_us(), StreamFailure(DROPPED, "internal", "", self.composer.stream_id))
        self.pump()
        self.close()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close(LINGER_MS)
        if self._control_socket is not None:
            self._control_socket.close()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
