"""What can go wrong with a token stream, as exceptions: one for each way in which it can end too early."""

from __future__ import annotations

from typing import assert_never

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.messages import Complete, StreamFailure
from penstock.dialects.streamservice.verify_stream import Ending, Gap, Tampered, Truncated, Unreadable


class BrokenStream(PenstockError):  # noqa: N818 - says what is broken
    """A token stream that did not come to its end. What was read before is whole and in order."""


class GapError(BrokenStream):
    """Messages are missing, how many nobody knows, and asking for them did not help."""

    def __init__(self, gap: Gap) -> None:
        told = "the relay does not have them any more" if gap.is_gone else "nobody sent them again"
        super().__init__(Refusal("StreamGap", f"the next messages of the stream are missing, and {told}"))
        self.is_gone = gap.is_gone
        """The relay itself said that it does not have them."""


class TamperedStream(BrokenStream):
    """In place of the next message there are others, which the publisher did not make."""

    def __init__(self, tampered: Tampered) -> None:
        super().__init__(
            Refusal("StreamTampered", f"{tampered.count} messages in a row are not the publisher's")
        )
        self.count = tampered.count


class TruncatedStream(BrokenStream):
    """Nothing comes any more, and nothing said that this is the end."""

    def __init__(self, truncated: Truncated) -> None:
        told = "fell silent" if truncated.reason == "idle" else "expired"
        super().__init__(Refusal("StreamTruncated", f"the stream {told} before its end"))
        self.reason = truncated.reason


class StreamFailed(BrokenStream):
    """The publisher ended the stream with an error; `failure` is what it says."""

    def __init__(self, failure: StreamFailure) -> None:
        super().__init__(Refusal("StreamFailed", failure.message or failure.code, ref=failure.code))
        self.failure = failure


class StreamCancelled(PenstockError):  # noqa: N818 - not a mistake of anybody
    """The reader wants no more; the publisher has ended the stream."""

    def __init__(self) -> None:
        super().__init__(Refusal("StreamCancelled", "the reader cancelled the stream"))


def error_of(ending: Ending) -> PenstockError | None:
    """What an ending is for somebody who reads tokens; none for the proper one."""
    match ending:
        case Complete():
            return None
        case StreamFailure():
            return StreamFailed(ending)
        case Gap():
            return GapError(ending)
        case Tampered():
            return TamperedStream(ending)
        case Truncated():
            return TruncatedStream(ending)
        case Unreadable(reason=reason):
            return StreamFailed(
                StreamFailure(f"the publisher sent what we cannot read: {reason}", "unreadable")
            )
        case _:
            assert_never(ending)
