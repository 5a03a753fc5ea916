"""The table `conversations`: the envelopes that share a `corr`, as a tree, and its critical path.

The parent of an envelope is the newest earlier one of its conversation that its `refs` name; else the newest earlier one in its sender's
inbox; else it has none. Dead letters are left out: the record counts, its copy in `dlq/…` does not. Envelopes in a space go to everyone
and are never settled, so they are never open, and only their senders count as agents. Spark sorts the rows; plain Python builds each
tree in one pass, without holding a conversation twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.spark.lake.schemas import CONVERSATIONS
from penstock.spark.lake_tables.expressions import BEGUN, DEAD_PREFIX, MEW, agent_named, agent_of, owner_named, owner_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline.batch import JournalBatch

MEMBERS_MAX = 10_000
"""Envelopes in the tree of one conversation. Beyond, counts and times stay exact; depth and path cover the first ones."""


class ConversationEvent(NamedTuple):
    """One envelope of a conversation or, with an outcome, the settle of one."""

    cluster: str
    corr: str
    at_us: int
    journal: str
    offset: int
    channel: str
    seq: int
    id: str | None = None
    door: str | None = None
    agent: str | None = None
    """The sender."""
    owner: str | None = None
    """The owner of the inbox that it was sent to."""
    refs: list[str] | None = None
    outcome: str | None = None


def conversations(envelopes: DataFrame, deliveries: DataFrame, cluster: str | None = None) -> DataFrame:
    """One row for each conversation; the arguments hold all envelopes and deliveries of those conversations.

    Without a cluster, journals are kept apart.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    together = _members(envelopes, deliveries, cluster).repartition("cluster", "corr")
    return together.sortWithinPartitions(*_ORDER).mapInArrow(build_rows, from_arrow_schema(CONVERSATIONS.schema))


def touched_conversations(batch: JournalBatch) -> DataFrame | pa.Table:
    """The rows of the table that a batch changes."""
    sent, ended = batch.touched_conversations()
    cluster = batch.group.cluster
    if isinstance(sent, pa.Table) and isinstance(ended, pa.Table):
        return talks_of(sent, ended, cluster, frozenset(batch.touched or ()))
    return conversations(batch.frame(sent), batch.frame(ended), cluster)


def talks_of(sent: pa.Table, ended: pa.Table, cluster: str, only: Container[str]) -> pa.Table:
    """These conversations, from envelopes and deliveries in memory."""
    found = [*_sent_members(sent, cluster), *_ended_members(ended, cluster)]
    members = sorted((one for one in found if one.corr in only), key=attrgetter(*_ORDER))
    return pa.Table.from_batches(CONVERSATIONS.batches(_trees(members)), CONVERSATIONS.schema)


def _is_counted(channel: str | None) -> bool:
    return channel is not None and not channel.startswith(DEAD_PREFIX)


def _sent_members(rows: pa.Table, cluster: str) -> Iterator[ConversationEvent]:
    times = rows.column("recorded_at").cast(pa.int64()).to_pylist()
    names = ("journal", "corr", "offset", "channel", "seq", "id", "door", "sender", "refs")
    columns = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    for at_us, (journal, corr, offset, channel, seq, id_, door, sender, refs) in zip(times, columns, strict=True):
        is_in_space = door == MEW
        corr = id_ if corr is None and is_in_space else corr  # as `BEGUN`
        if corr is not None and (is_in_space or _is_counted(channel)):
            parties = agent_named(sender), None if is_in_space else owner_named(channel)
            yield ConversationEvent(cluster, corr, at_us, journal, offset, channel, seq, id_, door, *parties, refs)


def _ended_members(rows: pa.Table, cluster: str) -> Iterator[ConversationEvent]:
    times = rows.column("settled_at").cast(pa.int64()).to_pylist()
    names = ("journal", "corr", "offset", "channel", "seq", "outcome")
    columns = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    for at_us, (journal, corr, offset, channel, seq, outcome) in zip(times, columns, strict=True):
        if corr is not None and _is_counted(channel):
            yield ConversationEvent(cluster, corr, at_us, journal, offset, channel, seq, outcome=outcome)


def _members(sent: DataFrame, ended: DataFrame, cluster: str | None) -> DataFrame:
    """The envelopes and settles of conversations."""
    return sent.sparkSession.sql(_MEMBERS, args={"cluster": cluster}, envelopes=sent, deliveries=ended)


_ORDER = ("cluster", "corr", "at_us", "journal", "offset")


_MEMBERS = f"""
with members as (
  select journal, coalesce(corr, {BEGUN}) as corr, offset, unix_micros(recorded_at) as at_us, channel, seq, id, door,
    {agent_of("sender")} as agent,
    if(door = '{MEW}', null, {owner_of("channel")}) as owner, refs, cast(null as string) as outcome
  from {{envelopes}}
  union all
  select journal, corr, offset, unix_micros(settled_at), channel, seq, null, null, null, null, null, outcome
  from {{deliveries}}
)
select coalesce(cast(:cluster as string), journal) as {", ".join(ConversationEvent._fields)} from members where corr is not null and (door = '{MEW}' or channel not like '{DEAD_PREFIX}%')
"""
MEMBER_COLUMNS = (
    "journal", "corr", "offset", "recorded_at", "settled_at", "channel", "seq", "id", "door", "sender", "refs", "outcome"
)  # fmt: skip
"""Columns of envelopes and deliveries that conversations are built from."""


def build_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted members become conversations."""
    members = (
        ConversationEvent(*row)
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    return CONVERSATIONS.batches(_trees(members))


def _trees(members: Iterable[ConversationEvent]) -> Iterator[dict[str, Any]]:
    """The rows of conversations, from their members in order."""
    for _, group in groupby(members, key=lambda member: (member.cluster, member.corr)):
        if (made := conversation(group)) is not None:
            yield made


class _Node:
    """An envelope in the tree."""

    __slots__ = ("depth", "end_us", "id", "number", "parent", "start_us")

    def __init__(self, number: int, member: ConversationEvent, parent: _Node | None) -> None:
        self.number = number
        self.id = member.id or ""
        self.start_us = self.end_us = member.at_us
        self.parent = parent
        self.depth: int = 1 if parent is None else parent.depth + 1


class _Tree:
    """The first envelopes of a conversation, in order."""

    def __init__(self, members_max: int) -> None:
        self._members_max = members_max
        self._by_position: dict[tuple[str, bool, str, int], _Node] = {}
        self._by_id: dict[str, _Node] = {}
        self._by_owner: dict[str, _Node] = {}
        self.root: _Node | None = None
        self.depth = 0

    def add(self, member: ConversationEvent) -> None:
        if len(self._by_position) >= self._members_max:
            return
        node = _Node(len(self._by_position), member, self._parent(member))
        self.root = self.root or node
        self.depth = max(self.depth, node.depth)
        self._by_position[member.journal, member.door == MEW, member.channel, member.seq] = node
        self._by_id[node.id] = node
        if member.owner is not None:
            self._by_owner[member.owner] = node

    def _parent(self, member: ConversationEvent) -> _Node | None:
        """The earlier envelope that this one answers."""
        named = [self._by_id[ref] for ref in member.refs or () if ref in self._by_id]
        if named:
            return max(named, key=lambda node: node.number)
        return None if member.agent is None else self._by_owner.get(member.agent)

    def settle(self, member: ConversationEvent) -> None:
        node = self._by_position.get((member.journal, False, member.channel, member.seq))
        if node is not None:
            node.end_us = max(node.end_us, member.at_us)

    def path(self) -> list[_Node]:
        """The chain of answers to the envelope that ended last, first one first."""
        node: _Node | None = max(self._by_position.values(), key=lambda node: (node.end_us, node.number))
        chain: list[_Node] = []
        while node is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]


def conversation(members: Iterable[ConversationEvent], members_max: int = MEMBERS_MAX) -> dict[str, Any] | None:
    """The row of one conversation, from its envelopes and settles in order; None without an envelope."""
    tree = _Tree(members_max)
    agents: dict[str, None] = {}
    doors: dict[str, None] = {}
    first: ConversationEvent | None = None
    last_us = envelopes = queued = settled = dead = 0
    for member in members:
        last_us = max(last_us, member.at_us)
        if member.outcome is not None:
            settled += 1
            dead += member.outcome == "dead"
            tree.settle(member)
            continue
        first = first or member
        envelopes += 1
        queued += member.door != MEW
        tree.add(member)
        agents.update(dict.fromkeys(name for name in (member.agent, member.owner) if name is not None))
        doors.update({member.door: None} if member.door is not None else {})
    if first is None or tree.root is None:
        return None
    path = tree.path()
    unsettled = max(queued - settled, 0)
    return {
        "journal": first.journal,
        "corr": first.corr,
        "root_id": tree.root.id,
        "started_at": first.at_us,
        "last_at": last_us,
        "envelopes": envelopes,
        "agents_count": len(agents),
        "depth": tree.depth,
        "settled": settled,
        "dead": dead,
        "unsettled": unsettled,
        "agents": sorted(agents),
        "doors": sorted(doors),
        "duration_ms": (last_us - first.at_us) / 1000,
        "critical_path": [node.id for node in path],
        "critical_path_ms": (path[-1].end_us - path[0].start_us) / 1000,
        "final": unsettled == 0,
        "cluster": first.cluster,
    }
