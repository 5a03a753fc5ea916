"""A stream of a space, for a participant that may write to it.

Owns only the last error of a frame: a frame has no id, so the gateway's error arrives later, and the next `write` raises it. Everything
else about the stream is in the roster of the space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from penstock.client.space.messages import SpaceEnvelope, SpaceError, object_of, text_of, texts_of
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.space.client import Space


class SpaceStream:
    """A stream to write to; `Space.open_stream` makes one, and `Space.stream` finds one that another participant opened.

    Example:
        async with await space.open_stream("collector", content_type="application/json") as stream:
            await stream.write('{"celsius": 21.5}')
    """

    def __init__(self, room: Space, stream_id: str) -> None:
        self.id = stream_id
        self._room = room
        self._refusal: SpaceError | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self.id in self._room.active_streams

    @property
    def info(self) -> dict[str, Any]:
        """The gateway's description of the stream; empty when it is closed."""
        return dict(self._room.active_streams.get(self.id, {}))

    @property
    def owner(self) -> str:
        """The participant that may close it and let others write."""
        return text_of(self.info.get("owner"))

    @property
    def target(self) -> tuple[str, ...]:
        """The receivers of its frames; empty means all participants."""
        return texts_of(self.info.get("target"))

    @property
    def writers(self) -> tuple[str, ...]:
        """The participants that may write to it."""
        return texts_of(self.info.get("authorized_writers"))

    async def write(self, data: bytes | str) -> None:
        """Send one frame; waits while the gateway does not read. Returns when the frame is sent, without a confirmation.

        Raises the gateway's error about an earlier frame, once, and `UnknownStream` when the stream is closed.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        await self._room.write_frame(self.id, data)

    async def close(self, reason: str | None = None) -> None:
        """Close the stream, if it is open. Only its owner may."""
        if self.is_open:
            payload = {"stream_id": self.id} | ({"reason": reason} if reason else {})
            await self._room.send("stream/close", payload)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def grant_write(self, participant: str, reason: str | None = None) -> None:
        """Let another participant write. Only the owner may."""
        await self._ask("stream/grant-write", participant_id=participant, reason=reason)

    async def revoke_write(self, participant: str, reason: str | None = None) -> None:
        """Take back the right to write. Only the owner may."""
        await self._ask("stream/revoke-write", participant_id=participant, reason=reason)

    async def transfer(self, new_owner: str, reason: str | None = None) -> None:
        """Make another participant the owner, with the right to write. The target does not change."""
        await self._ask("stream/transfer-ownership", new_owner=new_owner, reason=reason)

    async def _ask(self, kind: str, **fields: str | None) -> None:
        given = {name: value for name, value in fields.items() if value is not None}
        await self._room.ask_gateway(kind, {"stream_id": self.id, **given})

    def __repr__(self) -> str:
        whom = ", ".join(self.target) or "all"
        return f"<SpaceStream {self.id} to {whom}>" if self.is_open else f"<SpaceStream {self.id}, closed>"

    # -- for the space

    def _refused(self, error: SpaceError) -> None:
        """The gateway rejected a frame."""
        self._refusal = error


def closed_error(stream_id: str) -> PenstockError:
    hint = "its owner closed it or was disconnected too long; open another one with `open_stream`"
    return PenstockError(Refusal("UnknownStream", f"the stream `{stream_id}` is not open", ref=stream_id, hint=hint))


def opened_id(envelope: SpaceEnvelope) -> str:
    """The id in a `stream/open`."""
    return text_of(object_of(envelope.payload).get("stream_id"))
