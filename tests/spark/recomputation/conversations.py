"""Conversations as trees, quadratic in their length and free of any cleverness."""

from __future__ import annotations

from collections.abc import Iterator

from tests.spark.recomputation.rows import Journal, Row, agent_of, grouped, owner_of
from tests.spark.recomputation.silver import deliveries, envelopes


def conversations(journal: Journal) -> Iterator[Row]:
    members = [
        row | {"corr": row["corr"] or (row["id"] if row.get("door") == "mew" else None)}
        for row in [*envelopes(journal), *deliveries(journal)]
        if row.get("door") == "mew" or not row["channel"].startswith("dlq/")
    ]
    for (corr,), rows in grouped(sorted(members, key=lambda row: row["offset"]), "corr").items():
        sent = [row for row in rows if "outcome" not in row]
        if corr is not None and sent:
            yield _conversation(journal.id, corr, rows, sent)


def _conversation(journal: str, corr: str, rows: list[Row], sent: list[Row]) -> Row:
    settles = [row for row in rows if "outcome" in row]
    parents: dict[int, int | None] = {}
    ends: dict[int, int] = {}
    agents: set[str] = set()
    for number, row in enumerate(sent):
        sender, owner = agent_of(row["sender"]), None if row["door"] == "mew" else owner_of(row["channel"])
        agents |= {name for name in (sender, owner) if name is not None}
        earlier = list(enumerate(sent[:number]))
        named = [one for one, other in earlier if other["id"] in (row["refs"] or ())]
        inbox = [one for one, other in earlier if other["door"] != "mew" and owner_of(other["channel"]) == sender]
        parents[number] = max(named or (inbox if sender is not None else []), default=None)
        where = row["door"] == "courier", row["channel"], row["seq"]
        over = [one["settled_at"] for one in settles if (True, one["channel"], one["seq"]) == where]
        ends[number] = max([row["recorded_at"], *over])
    chains = {number: _chain(parents, number) for number in parents}
    path = chains[max(ends, key=lambda number: (ends[number], number))]
    start, last = sent[0]["recorded_at"], max(row.get("settled_at") or row["recorded_at"] for row in rows)
    unsettled = sum(row["door"] == "courier" for row in sent) - len(settles)
    return {
        "journal": journal,
        "corr": corr,
        "root_id": sent[0]["id"],
        "started_at": start,
        "last_at": last,
        "envelopes": len(sent),
        "agents_count": len(agents),
        "depth": max(map(len, chains.values())),
        "settled": len(settles),
        "dead": sum(row["outcome"] == "dead" for row in settles),
        "unsettled": max(unsettled, 0),
        "agents": sorted(agents),
        "doors": sorted({row["door"] for row in sent}),
        "duration_ms": (last - start) / 1000,
        "critical_path": [sent[number]["id"] for number in path],
        "critical_path_ms": (ends[path[-1]] - sent[path[0]]["recorded_at"]) / 1000,
        "final": unsettled <= 0,
        "cluster": journal,
    }


def _chain(parents: dict[int, int | None], number: int | None) -> list[int]:
    chain: list[int] = []
    while number is not None:
        chain.append(number)
        number = parents[number]
    return chain[::-1]
