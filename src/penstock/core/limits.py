"""Section `limits` of the config: every bound that an operator can set for the queue and the spaces, with its reason.

The relay has its own section (`core/relay/bounds.py`). Bounds that no operator needs to tune are constants next to their code.
"""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `limits` of the config file."""

    streams_max: int = 100_000
    """Streams in memory: about 2 KiB each when empty."""
    dormant_max: int = 1_000_000
    """Unloaded streams whose numbering is remembered: about 200 bytes each."""
    idle_unload_ms: int = 60_000
    """An empty stream without consumers leaves memory after this."""
    dedup_max: int = 2_000_000
    """Settled ids remembered in all streams together: about 300 bytes each."""
    memory_max: int = 2048 * MIB
    """Bytes of envelopes held in all streams together."""
    pending_max: int = 64 * MIB
    """Bytes accepted but not yet committed: a journal further behind than this refuses."""
    undecided_max: int = 500_000
    """Facts the journal has not answered for: beyond that the server reads from no connection."""
    envelope_max: int = 1 * MIB
    """Bytes of one envelope."""
    frame_max: int = 8 * MIB
    """Bytes of one request body, control line or WebSocket message of control lines: room for arrays."""
    message_max: int = 1 * MIB
    """Bytes of one message on a subscribe WebSocket, where clients send credit and ids only."""
    batch_max: int = 4096
    """Envelopes or ids in one array."""
    depth_max: int = 64
    """Nesting of JSON: parsers of our readers have limits too."""
    id_max: int = 256
    """Characters of an envelope id."""
    name_max: int = 512
    """Characters of a stream name."""
    type_max: int = 256
    """Characters of an envelope type."""
    credit_max: int = 100_000
    """Outstanding credit of one subscription."""
    lease_min_ms: int = 1_000
    """Shorter leases expire on the way."""
    lease_max_ms: int = 12 * 3_600_000
    """A lease, extensions included, ends after this."""
    delay_max_ms: int = 15 * 60_000
    """Longest delay of a nack."""
    schedule_max_ms: int = 30 * 86_400_000
    """Longest delay of an enqueue."""
    pull_max: int = 1_000
    """Envelopes of one pull."""
    pull_wait_max_ms: int = 60_000
    """Longest wait of one pull: proxies cut longer ones."""
    waiters_max: int = 10_000
    """Pulls waiting at once."""
    links_max: int = 20_000
    """Connections at once."""
    connections_per_address_max: int = 20_000
    """Connections of one address at once; an IPv6 address counts by its /64 network."""
    unauthenticated_per_address_max: int = 1_000
    """Connections of one address that have shown no token yet, or have not joined a space; trusted proxies are exempt."""
    subscriptions_max: int = 1_024
    """Subscriptions and waiting pulls of one connection."""
    taps_max: int = 256
    """Taps of all connections: each costs a copy of every envelope of its stream."""
    copies_max: int = 8 * MIB
    """Bytes of a tap's copies that its peer has not read: further ones are left out and counted. Room for one array."""
    outbox_max: int = 1 * MIB
    """Bytes handed to a connection that its peer has not read: then deliveries pause."""
    outbox_hard_max: int = 16 * MIB
    """Bytes at which a peer that reads no answers is cut off."""
    outbox_total_max: int = 256 * MIB
    """Bytes that all peers together have not read: then the token or address that holds most loses its largest reader, strangers first."""
    input_total_max: int = 256 * MIB
    """Bytes of large bodies, messages and lines that all peers have sent and that wait: then the token or address that sent most loses its
    largest sender, strangers first."""
    answers_max: int = 10_000
    """Requests of one connection waiting for their commit: then we stop reading it."""
    strikes_max: int = 20
    """Broken lines of a connection, or unknown messages of a subscribe socket, before it is closed."""
    strike_decay_ms: int = 10_000
    """One strike is forgotten after each of these."""
    control_rate: int = 1_000_000
    """Frames a second of one connection before it is closed for flooding."""
    hello_ms: int = 10_000
    """A control connection that needs a token must present it within this."""
    observations_max: int = 10_000
    """Observations waiting for the journal: further ones are dropped and counted."""
    observations_bytes_max: int = 64 * MIB
    """Bytes of frames that wait for the journal where it keeps them: further ones are dropped from it and counted."""
    spaces_max: int = 100
    """Spaces of the server."""
    participants_max: int = 1_000
    """Participants of one space at once, virtual ones included."""
    space_streams_max: int = 10_000
    """Streams of one space that are open at once."""
    space_streams_bytes_max: int = 8 * MIB
    """Bytes of what is known of all open streams of one space: each joining participant receives all of it."""
    space_request_max: int = 16 * 1024
    """Bytes of the payload of a request for a stream: each joining participant receives it."""
    space_frame_max: int = 4 * MIB
    """Bytes of one frame of a participant."""
    space_envelope_max: int = 4 * MIB
    """Bytes of one envelope of a participant: room for the answer of a tool that reads a file of a few megabytes."""
    space_rate: int = 1_000_000
    """Messages of one participant in a second: further ones are refused."""
    space_outbox_max: int = 16 * MIB
    """Bytes of envelopes that a participant has not read: then it is disconnected."""
    space_telemetry_max: int = 8 * MIB
    """Bytes of frames that a participant has not read: then the oldest are dropped and counted."""
    space_wait_max: int = 1 * MIB
    """Bytes of frames of one stream with `overflow: wait` that a participant has not read: then its writers are not read either."""
    space_wait_ms: int = 5_000
    """A participant that takes nothing for this long while writers wait for it is removed from their stream."""
    invites_max: int = 10_000
    """Invited participants of one space."""
    grants_max: int = 1_000
    """Grants of one participant that were not taken back."""
    join_ms: int = 10_000
    """A connection to a space must join within this."""
    join_bytes_max: int = 64 * 1024
    """Bytes of a connection that showed no valid token and has not joined; its socket is read no further."""
    join_pause_ms: int = 200
    """How long a client that showed a token may leave the join out before it is taken in without one."""
    owner_grace_ms: int = 30_000
    """How long a stream waits for an owner that is gone."""
    ping_ms: int = 30_000
    """Interval of pings to participants; one that does not answer before the next ping is disconnected."""
    poll_ms: int = 60_000
    """A participant that polls over HTTP counts as present for this long after each time."""
    stage_bytes_max: int = 64 * MIB
    """Bytes of parts that applications have staged and not committed, all together."""
    stage_envelopes_max: int = 20_000
    """Envelopes of one staged batch: its commit makes them in steps and admits them in one turn, about 10 ms."""
    stage_apps_max: int = 10_000
    """Applications whose newest batch is remembered, for good, of each tenant: about 300 bytes each."""
    stage_ms: int = 30 * 60_000
    """Staged parts that are neither added to nor committed are dropped after this, for example when an application died."""
    rules_max: int = 1_000
    """Triggers: each costs a moment where it could fit."""
    rule_actions_max: int = 16
    """Actions of one trigger."""
    trigger_hops_max: int = 8
    """Triggers in a row: an envelope that so many have acted on fires no further one."""
    trigger_fanout_max: int = 256
    """Envelopes that one envelope may cause, directly and indirectly."""
    cooldowns_max: int = 100_000
    """Cooldowns at once, of all triggers and keys; beyond that the oldest is forgotten."""
    cooldown_bytes_max: int = 64 * MIB
    """Bytes of suppressed envelopes that cooldowns keep for their summaries; beyond that the oldest cooldown is forgotten."""
    breaker_failures: int = 5
    """Failures in a row after which a trigger rests."""
    breaker_ms: int = 30_000
    """How long it rests."""
    buckets_max: int = 100_000
    """Rates of tokens, addresses and streams that are being counted: about 300 bytes each; the idle go first."""
    idempotency_max: int = 100_000
    """Answers remembered by their `Idempotency-Key`: then the oldest are forgotten."""
    idempotency_bytes_max: int = 64 * MIB
    """Bytes of those answers."""
    idempotency_ms: int = 24 * 3_600_000
    """How long such an answer is remembered, at most."""
    tokens_max: int = 1_000
    """Tokens minted at run time: each is looked at when one is made or taken back, and written to one file."""
    record_max: int = 16 * MIB
    """Bytes of recorded frames that wait for the disk: further ones are dropped and counted."""
    view_rows_max: int = 10_000
    """Rows of one view: beyond that the least recently changed row is evicted and its removal sent."""
    view_bytes_max: int = 8 * MIB
    """Bytes of those rows: a snapshot is one message, and must fit a connection's outbox."""
    view_log_max: int = 10_000
    """Removed rows that a view remembers: a follower who was away longer gets a fresh snapshot."""
    view_flush_ms: int = 100
    """Changes of a view are gathered this long before they are sent to followers."""
    view_beat_ms: int = 500
    """Interval at which an on-demand view is rebuilt while it has followers."""
    live_heartbeat_ms: int = 15_000
    """Interval of heartbeats to idle followers: proxies cut silent connections."""
    drain_ms: int = 5_000
    """Time for leases to settle when the server stops."""
    metric_streams_max: int = 1_000
    """Streams with their own label in /metrics, where that is asked for; the rest is summed as `other`."""
