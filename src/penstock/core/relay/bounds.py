"""Every bound of the relay, each with the reason for its default. A section of the config file is made from it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

MIB = 1024 * 1024

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
JournalMode: TypeAlias = Literal["metadata", "full", "off"]
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=86_400.0)]


class RelayLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the relay keeps, and for how long."""

    max_pending_per_topic: Positive = 1_000
    """Messages held per topic, sent or not; then the oldest are dropped."""
    message_ttl: Seconds = 30.0
    """Seconds that a message is held."""
    compact_interval: Seconds = 5.0
    """Seconds between two runs that drop what is too old."""
    receive_hwm: Positive = 100_000
    """Messages that the publishers' socket holds before publishers have to wait."""
    send_hwm: Positive = 100_000
    """Messages queued for one subscriber. It loses further ones, detects that by the chain, and resumes."""
    topics_max: Positive = 10_000
    """Topics at once, about 1 KiB each without messages; further registrations are refused."""
    signer_topics_max: Positive = 10_000
    """Topics of one signer at once."""
    topic_bytes_max: Positive = 8 * MIB
    """Bytes held per topic; then the oldest messages are dropped."""
    bytes_max: Positive = 256 * MIB
    """Bytes held in all topics; then the publishing topic drops its oldest messages, in the end the new one too."""
    resident_spare_max: Positive = 256 * MIB
    """Resident memory above `bytes_max`: what ZeroMQ queues. Above it the relay disconnects all peers; if that does not help, it restarts."""
    message_max: Positive = 1 * MIB
    """Bytes of one message; a larger one is dropped, and a much larger one ends its publisher's connection."""
    idle_grace_ms: Positive = 60_000
    """How long a topic waits for its first message or subscriber: the first token of a large model is slow."""
    detach_grace_ms: Positive = 30_000
    """How long a topic outlives its last subscriber; a client reconnects sooner."""
    early_max: Positive = 10_000
    """Unregistered topics that have subscribers. When full: evict entries older than `early_ms`, otherwise reject new ones."""
    early_ms: Positive = 30_000
    """How long those subscribers are remembered at least; while there is room, for as long as they are connected."""
    connections_max: Positive = 10_000
    """Connections of publishers and subscribers at once, fewer where the limit of open files is lower; above it the newest is closed."""
    peer_subscriptions_max: Positive = 1_000
    """Subscriptions of one TCP connection, granted or not; above it the relay disconnects the peer. ZeroMQ stores about 4 KiB for each."""
    subscriptions_max: Positive = 10_000
    """Subscriptions of all connections; above it the relay disconnects the peer that holds most. ZeroMQ visits all of them whenever a
    peer disconnects, about 10 us each."""
    replay_interval_ms: Positive = 100
    """Minimum time between two replays of one topic, which go to all of its subscribers; requests in between are merged."""
    lifetime_max_s: Positive = 86_400
    """Longest life of a registration, whatever it asks for."""
    facts_max: Positive = 100_000
    """Registrations and ends that wait to be journaled; further ones do not survive a restart."""
    observations_max: Positive = 10_000
    """Counts that wait to be journaled; further ones are dropped and counted."""

    @property
    def ttl_us(self) -> int:
        return int(self.message_ttl * 1_000_000)

    @property
    def compact_us(self) -> int:
        return int(self.compact_interval * 1_000_000)
