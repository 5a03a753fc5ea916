"""The exceptions of token streams: one for each way in which a stream can end early."""

from __future__ import annotations

from typing import assert_never

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.messages import Complete, StreamFailure
from penstock.dialects.streamservice.verify_stream import Ending, Gap, Tampered, Truncated, Unreadable


class BrokenStream(PenstockError):  # noqa: N818 - reads well in `except BrokenStream`
    """The stream did not reach its end. The tokens read before are complete and in order."""


class GapError(BrokenStream):
    """Messages are missing, and requests to resume did not bring them back. The number of missing messages is unknown."""

    def __init__(self, gap: Gap) -> None:
        reason = "the relay no longer has them" if gap.is_gone else "requests for them were not answered"
        super().__init__(Refusal("StreamGap", f"the next messages of the stream are missing, and {reason}"))
        self.is_gone = gap.is_gone
        """Whether the relay reported that it no longer has them."""


class TamperedStream(BrokenStream):
    """Messages arrived that the publisher did not make, instead of the next one."""

    def __init__(self, tampered: Tampered) -> None:
        super().__init__(Refusal("StreamTampered", f"{tampered.count} messages in a row are not the publisher's"))
        self.count = tampered.count


class TruncatedStream(BrokenStream):
    """The stream stopped without a terminal message: the publisher fell silent, or the stream expired."""

    def __init__(self, truncated: Truncated) -> None:
        reason = "fell silent" if truncated.reason == "idle" else "expired"
        super().__init__(Refusal("StreamTruncated", f"the stream {reason} before its end"))
        self.reason = truncated.reason


class StreamFailed(BrokenStream):
    """The publisher ended the stream with an error; `failure` is that error."""

    def __init__(self, failure: StreamFailure) -> None:
        super().__init__(Refusal("StreamFailed", failure.message or failure.code, ref=failure.code))
        self.failure = failure


class StreamCancelled(PenstockError):  # noqa: N818 - not an error of the publisher
    """The reader cancelled the stream. Stop publishing: the publisher has already ended the stream."""

    def __init__(self) -> None:
        super().__init__(Refusal("StreamCancelled", "the reader cancelled the stream"))


def error_of(ending: Ending) -> PenstockError | None:
    """The exception for an ending; None for the normal one."""
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
            return StreamFailed(StreamFailure(f"the publisher sent what we cannot read: {reason}", "unreadable"))
        case _:
            assert_never(ending)
