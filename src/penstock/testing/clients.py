"""Clients that speak the real protocol over the simulated network.

They are simple on purpose: they send what a test gives them, and record what they receive. A test reads `lines` and `answers`; a program
that reacts sets `on_line`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.testing.network import SimConnection

Frame = dict[str, Any]


class PipeClient(ABC):
    """One end of a simulated connection."""

    def __init__(self, pipe: SimConnection, name: str) -> None:
        self.pipe = pipe
        self.name = name
        self.closed: tuple[int, str] | None = None
        pipe.on_data = self._data
        pipe.on_close = self._close

    @abstractmethod
    def _data(self, data: bytes) -> None: ...

    def _close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class LineClient(PipeClient):
    """A Control v1 connection.

    >>> from penstock.testing import World
    >>> world = World(seed=7)
    >>> client = world.connect()
    >>> req = client.request("ping")
    >>> world.advance(ms=50)
    >>> client.answers[req]
    {'type': 'ok', 'reqId': 1, 'result': {}}
    """

    def __init__(self, pipe: SimConnection, name: str) -> None:
        super().__init__(pipe, name)
        self.lines: list[Frame] = []
        """Everything received, in order."""
        self.answers: dict[int, Frame] = {}
        """The last answer to each `reqId` of `request`."""
        self.on_line: Callable[[Frame], None] | None = None
        self._rest = b""
        self._req_no = 0

    def send_line(self, *frames: Frame | bytes) -> None:
        """Send frames in one write; bytes are sent unchanged, with a line end."""
        lines = [frame if isinstance(frame, bytes) else msgspec.json.encode(frame) for frame in frames]
        self.pipe.write(b"".join(line + b"\n" for line in lines))

    def frame(self, kind: str, /, **fields: Any) -> Frame:
        """A frame with the next `reqId`, to send with others."""
        self._req_no += 1
        return {"type": kind, "reqId": self._req_no, **fields}

    def request(self, kind: str, /, **fields: Any) -> int:
        """Send one frame; its answer appears in `answers` under the returned `reqId`."""
        frame = self.frame(kind, **fields)
        self.send_line(frame)
        return int(frame["reqId"])

    @property
    def deliveries(self) -> list[Frame]:
        return [line for line in self.lines if line["type"] == "deliver"]

    def _data(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            frame = msgspec.json.decode(line)
            self.lines.append(frame)
            req_id = frame.get("reqId")
            if isinstance(req_id, int):
                self.answers[req_id] = frame
            if self.on_line is not None:
                self.on_line(frame)


class SocketClient(PipeClient):
    """A subscribe socket: `/v1/subscribe?stream=…`."""

    def __init__(self, pipe: SimConnection, name: str, stream: str) -> None:
        super().__init__(pipe, name)
        self.stream = stream
        self.messages: list[Frame] = []
        """Everything received, in order."""
        self.on_message: Callable[[Frame], None] | None = None

    def send(self, message: Frame | bytes) -> None:
        """Send one message, such as `{"credit": 5}` or `{"ack": id}`."""
        self.pipe.write(message if isinstance(message, bytes) else msgspec.json.encode(message))

    def _data(self, data: bytes) -> None:
        message = msgspec.json.decode(data)
        self.messages.append(message)
        if self.on_message is not None:
            self.on_message(message)
