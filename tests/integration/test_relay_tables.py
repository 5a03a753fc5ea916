"""Journal rows of a real relay with full messages become token streams in the tables."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.relay.topic import hash_of
from penstock.spark.lake_tables.stream_state import TokenEvent, fold
from penstock.spark.lake_tables.verification_keys import TokenKey
from tests.integration import token_peers as peers
from tests.integration.test_relay import MAC_KEY, context, publisher_of, rows, signer, wait

__all__ = ["context"]
COUNT = 6


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
@pytest.mark.parametrize("format_", ["chunk", "block"])
def test_a_stream_that_is_kept_whole_can_be_audited(start_server: Any, context: Any, format_: str) -> None:
    server = start_server("--relay", config="relay:\n  journal: full\n")
    publisher = publisher_of(context, server)
    topic = publisher.topic.decode()
    publisher.register(signer(server))
    for number in range(COUNT):
        if format_ == "chunk":
            publisher.chunk(peers.token(f"word{number}"))
        else:
            publisher.block([f"word{number}", "and"])

    def told() -> list[TokenEvent]:
        found = [
            TokenEvent(
                "j",
                row["channel"],
                place,
                place,
                row["event"],
                row["kind"],
                row["bytes"],
                row["reason"],
                row["meta"],
                row["body"],
            )
            for place, row in enumerate(rows(server))
        ]
        return found if any(row.event == "chunk_counts" for row in found) else []

    heard = wait(told)
    assert {row.topic_hash for row in heard} == {hash_of(publisher.topic)}
    [stream] = fold(heard, None, TokenKey(topic, MAC_KEY))
    made = stream.row()
    assert (made["chunks"], made["journaled"], made["chain_ok"], made["ended"]) == (
        COUNT,
        COUNT,
        True,
        "open",
    )
    assert made["tokens"] == COUNT * (1 if format_ == "chunk" else 2)
    [other] = fold(heard, None, TokenKey(topic, b"x" * 32))
    assert (other.tokens, other.forged) == (0, COUNT)
