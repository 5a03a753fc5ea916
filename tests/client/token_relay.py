"""A small relay in a thread that injects faults on demand.

It checks no signature and has no bounds. `meddle` sees each message before it goes to readers and returns what is sent instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from penstock.dialects.streamservice.wire import Chunk, Register, Resume, peek
from penstock.transports.zeromq import end_context

Parts = Sequence[bytes]
Meddle = Callable[[Parts], list[Parts]]


class TinyRelay:
    """PULL to XPUB: everything is kept, sent again to who subscribes, and after a mark to who resumes."""

    def __init__(
        self,
        folder: Path,
        *,
        pub: str | None = None,
        is_forgetful: bool = False,
        meddle: Meddle | None = None,
        curve: tuple[bytes, bytes] | None = None,
    ) -> None:
        """A forgetful relay replays nothing; one with CURVE keys rejects peers without them."""
        self.pub = pub or f"ipc://{folder}/pub.sock"
        self.push = f"ipc://{folder}/push.sock"
        self.is_forgetful = is_forgetful
        self.meddle = meddle
        self.curve = curve
        self.registered: list[Register] = []
        self.resumes: list[Resume] = []
        self.received: list[Parts] = []
        self.subscribed = threading.Event()
        self._context = zmq.Context()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(is_ready,), daemon=True)
        self._thread.start()
        assert is_ready.wait(10)

    def stop(self) -> None:
        """Like a crash as peers see it: messages that were not forwarded are lost."""
        self._wake.send(b"stop")
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._wake.close(0)
        end_context(self._context)

    def inject(self, *parts: bytes) -> None:
        """Send something to readers that no publisher sent."""
        self._wake.send_multipart([b"inject", *parts])

    def _run(self, is_ready: threading.Event) -> None:
        pull, xpub = self._context.socket(zmq.PULL), self._context.socket(zmq.XPUB)
        ears = self._context.socket(zmq.PAIR)
        xpub.set(zmq.XPUB_VERBOSER, 1)
        ears.connect("inproc://wake")
        for socket in (pull, xpub) if self.curve is not None else ():
            socket.curve_publickey, socket.curve_secretkey = self.curve
            socket.curve_server = True
        pull.bind(self.push)
        xpub.bind(self.pub)
        is_ready.set()
        poller = zmq.Poller()
        for socket in (pull, xpub, ears):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if ears in ready:
                parts = ears.recv_multipart()
                if parts == [b"stop"]:
                    break
                xpub.send_multipart(parts[1:])
            if xpub in ready:
                self._heard(xpub, xpub.recv())
            if pull in ready:
                self._pulled(xpub, pull.recv_multipart())
        # Without a linger time libzmq aborts when a reader disconnects meanwhile that has received only some parts of a message.
        for socket in (pull, xpub, ears):
            socket.close(1_000)

    def _pulled(self, xpub: zmq.Socket[bytes], parts: Parts) -> None:
        if len(parts) == 1:
            found = peek(parts[0])
            if isinstance(found, Register):
                self.registered.append(found)
                return
            if not isinstance(found, Chunk):
                return
            parts = (found.topic + parts[0],)
        if not self.is_forgetful:
            self.received.append(parts)
        for out in self.meddle(parts) if self.meddle is not None else [parts]:
            xpub.send_multipart(out)

    def _heard(self, xpub: zmq.Socket[bytes], frame: bytes) -> None:
        if frame[:2] == b"\x01\x02":
            self._resume(xpub, frame[2:])
        elif frame[0] == 1:
            self._again(xpub, frame[1:], 0)
            self.subscribed.set()
        else:
            assert frame[0] == 0, "only subscriptions go where subscriptions do"

    def _resume(self, xpub: zmq.Socket[bytes], request: bytes) -> None:
        resume = peek(request)
        assert isinstance(resume, Resume)
        self.resumes.append(resume)
        marks = [parts[2] if len(parts) == 3 else peek(parts[0][64:]).mac for parts in self.received]  # type: ignore[union-attr]
        if resume.mac in marks:
            self._again(xpub, resume.topic, marks.index(resume.mac) + 1)
        else:
            xpub.send_multipart((resume.topic, b"\x03" + resume.mac))

    def _again(self, xpub: zmq.Socket[bytes], topic: bytes, first: int) -> None:
        for parts in self.received[first:]:
            if parts[0][:64] == topic:
                xpub.send_multipart(parts)
