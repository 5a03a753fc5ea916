"""The answers of a front in the order of the requests, while several cells work on them.

Lines in a row that go to one cell are a chunk. A mark follows the last line of a chunk, so the cell returns the mark right after the last
answer. The answers of a chunk wait until all chunks before it are complete. Deliveries do not pass here: they wait for no answer.
A client that said `unordered` gets each answer as it comes.

A chunk with a `finish` collects its answers, possibly from several cells, and `finish` makes one answer of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.sessions.answers import Answers, Render

Parts: TypeAlias = list[tuple[int, bytes]]
"""Answers with the shards that gave them."""
Finish: TypeAlias = Callable[[Parts], "bytes | None"]
"""Makes the answer of what was collected; None when another cell has to be asked first."""


class AnswerChunk(msgspec.Struct, eq=False):
    """Requests that are answered together, at one place in the order."""

    finish: Finish | None = None
    waiting: int = 0
    """Cells whose mark has not come back."""
    parts: Parts = msgspec.field(default_factory=list)
    """Answers that cannot go out yet."""
    is_done: bool = False


def _end_nothing() -> None:
    """No chunk is open."""


@dataclass(slots=True, eq=False)
class FrontAnswers(Answers):
    """The answers of one client connection."""

    end_chunk: Callable[[], None] = _end_nothing
    """Ends the chunk that is open, because an answer of the front itself follows."""
    is_unordered: bool = False
    held_legs: int = 0
    """Cells that do not want to read more of this client."""
    _chunks: deque[AnswerChunk] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._chunks) + (self.is_full or self.held_legs > 0) * (self._runtime.machine.limits.answers_max + 1)

    def add(self, data: bytes) -> None:
        """An answer of the front itself."""
        if not self.is_unordered:
            self.end_chunk()
        if self.is_unordered or not self._chunks:
            self.session.out.append(data)
        else:
            self._chunks.append(AnswerChunk(parts=[(-1, data)], is_done=True))
            self._filled += len(data)

    def after(self, gate: int, render: Render, *, fresh: bool = False) -> None:
        """The front waits for no commit: its cells do."""
        self.add(render(None))

    def release(self) -> None:
        Answers.release(self)
        self._chunks.clear()
        self.end_chunk = _end_nothing

    def begin(self, finish: Finish | None = None) -> AnswerChunk:
        """A chunk at the end of the order."""
        chunk = AnswerChunk(finish)
        if finish is not None or not self.is_unordered:
            self._chunks.append(chunk)
        return chunk

    def expect(self, chunk: AnswerChunk) -> None:
        """Close the connection only after this chunk, which an unordered client does not wait for."""
        self._chunks.append(chunk)

    def arrived(self, chunk: AnswerChunk, shard: int, data: bytes) -> None:
        """A cell has answered requests of a chunk."""
        if chunk.is_done:  # it was cut off
            return
        if chunk.finish is None and (self.is_unordered or self._chunks[0] is chunk):
            self.session.out.append(data)
            return
        chunk.parts.append((shard, data))
        self._filled += len(data)
        if self._filled > self._runtime.machine.limits.outbox_hard_max and self.session.closing is None:
            message = "answers of more than `limits.outbox_hard_max` bytes wait for an answer before them"
            self.session.drain(Refusal("SlowConsumer", message, hint="read the answer to a pull before you send more"))

    def marked(self, chunk: AnswerChunk) -> None:
        """A cell has answered all that it was asked in a chunk."""
        chunk.waiting -= 1
        if chunk.waiting or chunk.is_done:
            return
        if chunk.finish is not None:
            parts, chunk.parts = chunk.parts, []
            self._filled -= sum(len(data) for _, data in parts)
            data = chunk.finish(parts)
            if data is None:
                return
            chunk.parts = [(-1, data)] if data else []
            self._filled += len(data)
        chunk.is_done = True
        if self.is_unordered:
            self._give(chunk)
            if chunk in self._chunks:
                self._chunks.remove(chunk)
            return
        self._advance()

    def _advance(self) -> None:
        """Give what is complete, and of the first chunk that is not, what there is."""
        while self._chunks:
            first = self._chunks[0]
            if first.is_done or first.finish is None:
                self._give(first)
            if not first.is_done:
                return
            self._chunks.popleft()

    def _give(self, chunk: AnswerChunk) -> None:
        for _, data in chunk.parts:
            self.session.out.append(data)
            self._filled -= len(data)
        chunk.parts = []

    def cut(self, chunk: AnswerChunk) -> None:
        """A cell answers no more: drop what comes after its chunk, or a client would match answers with wrong requests."""
        if chunk not in self._chunks:
            return
        while self._chunks[-1] is not chunk:
            self._drop()
        if chunk.finish is not None:
            self._drop()
        else:
            chunk.is_done = True
        self._advance()

    def _drop(self) -> None:
        """Remove the last chunk. Its cells may answer it all the same."""
        chunk = self._chunks.pop()
        self._filled -= sum(len(data) for _, data in chunk.parts)
        chunk.is_done = True
